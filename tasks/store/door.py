"""The one place where errors of botocore, urllib3 and the socket become ours.

StoreUnavailable    lost connection, timeout, 408 409 425 429 5xx, SlowDown, bytes damaged on the way (transient)
StoreRefused        credentials, permissions, clock, region, missing bucket, settings, not an S3 server
ArtifactMissing     404 for a key; an upload or one of its parts that is gone
ArtifactCorrupt     416: the object is shorter than its manifest says
PreconditionFailed  412
StoreError          any other answer
"""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import boto3.exceptions
import botocore.exceptions as outside
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from tasks.errors import (
    ArtifactCorrupt,
    ArtifactMissing,
    PreconditionFailed,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from tasks.store.location import StoreLocation

LOST = (
    outside.ConnectionError,
    outside.HTTPClientError,
    outside.IncompleteReadError,
    HTTPError,
    ConnectionError,
    TimeoutError,
)
NOT_S3 = (ResponseParserError, ValueError, KeyError)
NO_CREDENTIALS = (
    outside.NoCredentialsError,
    outside.PartialCredentialsError,
    outside.CredentialRetrievalError,
    outside.NoAuthTokenError,
    outside.TokenRetrievalError,
    outside.UnauthorizedSSOTokenError,
    outside.SSOError,
    outside.LoginError,
    outside.MetadataRetrievalError,
    outside.ProfileNotFound,
    outside.RefreshWithMFAUnsupportedError,
)
OUTSIDE = (
    outside.BotoCoreError,
    outside.ClientError,
    boto3.exceptions.Boto3Error,
    ssl.SSLError,
    *LOST,
    *NOT_S3,
)

TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
NOT_OFFERED_STATUS = frozenset({405, 501, 505})  # "this server never does that": asking again is no use
FULL_STATUS = 507
TRANSIENT_CODES = frozenset(
    {
        "RequestTimeout",
        "RequestTimeoutException",
        "PriorRequestNotComplete",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "ServiceUnavailable",
        "InternalError",
        "OperationAborted",
        "ConditionalRequestConflict",
        "IncompleteBody",
        "BadDigest",
        "XAmzContentSHA256Mismatch",
        "XAmzContentChecksumMismatch",
    }
)
GONE_CODES = frozenset({"NoSuchUpload", "InvalidPart"})  # an upload that must be sent again from its start
PERMANENT_CONFLICTS = frozenset(
    {"BucketAlreadyExists", "BucketAlreadyOwnedByYou", "BucketNotEmpty", "InvalidBucketState"}
)
MEND = {
    "NoSuchBucket": "create it with `draftworks up` (local server) or `aws s3api create-bucket --bucket {bucket}`",
    "InvalidAccessKeyId": "check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "check AWS_SECRET_ACCESS_KEY, and the region in DRAFTWORKS_S3_REGION",
    "RequestTimeTooSkewed": "set this machine's clock (it and the server's differ too much)",
    "ExpiredToken": "renew AWS_SESSION_TOKEN",
    "InvalidToken": "renew AWS_SESSION_TOKEN",
    "PermanentRedirect": "set DRAFTWORKS_S3_REGION to the bucket's region, or the endpoint to the bucket's own",
    "AuthorizationHeaderMalformed": "set DRAFTWORKS_S3_REGION to the bucket's region",
    "IllegalLocationConstraintException": "set DRAFTWORKS_S3_REGION to the endpoint's region",
    "AccessDenied": "give these credentials read, write, list and delete on the bucket",
    "InvalidObjectState": "the object is archived: restore it first",
    "XMinioStorageFull": "free space on the server",
    "QuotaExceeded": "raise the quota of the bucket, or free space in it",
    "NotImplemented": "use a server that offers this operation",
    "MethodNotAllowed": "use a server that offers this operation, and check the endpoint's URL",
    "Unauthorized": "check the credentials; some servers answer this when they reject a checksum header",
}


@contextmanager
def at_the_door(action: str, location: StoreLocation, key: str = "") -> Iterator[None]:
    """Translate every outside error of the calls inside; nothing else may be called inside."""
    try:
        yield
    except OUTSIDE as error:
        raise to_store_error(error, action, location, key) from error


def to_store_error(error: Exception, action: str, location: StoreLocation, key: str = "") -> StoreError:
    """Return our error for one of theirs, with a complete message."""
    attempt = f"{action} {location.uri(key)} at {location.server}"
    if isinstance(error, outside.ClientError):
        return _answered(error.response, attempt, location)
    if isinstance(error, ssl.SSLError | outside.SSLError):
        return StoreRefused(f"{attempt}: no trusted TLS connection ({error}); check the URL and AWS_CA_BUNDLE")
    if isinstance(error, NO_CREDENTIALS):
        return StoreRefused(f"{attempt}: {error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if isinstance(error, LOST):
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        return StoreUnavailable(f"{attempt}: no complete answer ({what}); check that the server runs and try again")
    if isinstance(error, NOT_S3):
        seen = str(error)[:200].replace("\n", " ")
        return StoreRefused(f"{attempt}: the answer is not S3's ({seen}); check that the endpoint is an S3 server")
    return StoreRefused(f"{attempt}: {type(error).__name__}: {error}; check the S3 settings and credentials")


def _answered(response: Mapping[str, Any], attempt: str, location: StoreLocation) -> StoreError:
    """Return our error for an HTTP answer; its code decides where there is one, else its status."""
    details = response.get("Error", {})
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(details.get("Code", "")) or str(status)
    region = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("x-amz-bucket-region")
    seen = f"{attempt}: HTTP {status} {code} {details.get('Message') or ''}".rstrip()
    if region and region != location.region and status in (301, 307, 400):
        return StoreRefused(f"{seen}; the bucket is in region {region}, set DRAFTWORKS_S3_REGION={region}")
    mend = MEND.get(code, "").format(bucket=location.bucket)
    kind = _kind(status, code)
    if kind is StoreUnavailable:
        return StoreUnavailable(
            f"{seen}; the server is busy or restarting (try again later), or is no S3 server (check the endpoint)"
        )
    if kind is StoreRefused:
        return StoreRefused(f"{seen}; {mend or 'check credentials, permissions, endpoint and region'}")
    if kind is ArtifactMissing:
        return ArtifactMissing(f"{seen}; it was never written or was deleted: run the stage that makes it")
    if kind is PreconditionFailed:
        return PreconditionFailed(f"{seen}; another writer was first: read it again and decide")
    if kind is ArtifactCorrupt:
        return ArtifactCorrupt(f"{seen}; the object is shorter than expected: delete it and run its stage again")
    return StoreError(f"{seen}; the server understood and did not do it, see its log")


def _kind(status: int, code: str) -> type[StoreError]:
    if code in TRANSIENT_CODES:
        return StoreUnavailable
    if code in MEND or status in NOT_OFFERED_STATUS or status == FULL_STATUS:
        return StoreRefused
    if code in PERMANENT_CONFLICTS:
        return StoreError
    if code in GONE_CODES:
        return ArtifactMissing
    if status in TRANSIENT_STATUS or status >= 500:
        return StoreUnavailable
    by_status: dict[int, type[StoreError]] = {
        301: StoreRefused,
        307: StoreRefused,
        401: StoreRefused,
        403: StoreRefused,
        404: ArtifactMissing,
        412: PreconditionFailed,
        416: ArtifactCorrupt,
    }
    return by_status.get(status, StoreError)
