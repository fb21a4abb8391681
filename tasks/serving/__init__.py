"""vLLM: its command line, start and stop, the calls we make, its counters. Translates vLLM's words into ours."""
