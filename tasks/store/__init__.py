"""S3-compatible storage: artifacts by fingerprint, pointers, leases; the only room that imports boto3."""
