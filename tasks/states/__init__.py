"""Hidden states of the target: the connector inside vLLM, content checks, packed shards."""
