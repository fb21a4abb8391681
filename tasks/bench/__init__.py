"""Measuring a draft against the target alone: workloads, figures, comparison, plots. Knows nothing of pass or fail."""
