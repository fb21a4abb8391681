"""Inputs with known verdicts: small drafts, one fault each (first line of each README), and a maker of tiny ones."""
