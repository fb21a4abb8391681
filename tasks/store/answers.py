"""What the HTTP answer of a server means, as one of our errors with what to do.

StoreUnavailable    408 409 425 429 5xx, SlowDown, bytes damaged on the way, a request that was signed too long ago
StoreRefused        credentials, permissions, clocks, region, redirects, missing bucket, not an S3 server
ArtifactMissing     404 for a key; an upload or one of its parts that is gone
ArtifactCorrupt     416: the object is shorter than its manifest says
PreconditionFailed  412
StoreError          any other answer

S3 describes every error in a small XML document with a code; an answer without one is some other server's, except to
HEAD, which has no body.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import ClientError

from tasks.errors import (
    ArtifactCorrupt,
    ArtifactMissing,
    PreconditionFailed,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from tasks.store.location import StoreLocation

TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
NOT_OFFERED_STATUS = frozenset({405, 501, 505})  # "this server never does that": asking again is no use
REDIRECTS = frozenset({301, 302, 303, 307, 308})
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
NO_BUCKET = "NoSuchBucket"
SKEWED = "RequestTimeTooSkewed"
CLOCKS_AGREE_S = 300.0  # S3 itself tolerates 900
PATH_STYLE = (
    "Draftworks asks path-style, {server}/{bucket}/key: set DRAFTWORKS_S3_ENDPOINT to an S3 server that takes this, "
    "without a bucket in its name"
)
MEND = {
    NO_BUCKET: "make it with `draftworks up` (local server) or `aws {option}s3 mb s3://{bucket}`, or set "
    "DRAFTWORKS_S3_BUCKET to one that exists",
    "InvalidAccessKeyId": "check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "check AWS_SECRET_ACCESS_KEY, and the region in DRAFTWORKS_S3_REGION",
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
    # Servers that know virtual-host addresses only: Alibaba OSS, Tencent COS, Volcengine TOS.
    "SecondLevelDomainForbidden": PATH_STYLE,
    "PathStyleDomainForbidden": PATH_STYLE,
    "InvalidPathAccess": PATH_STYLE,
}
ABOUT_BUCKETS = frozenset({"ListObjectsV2", "ListMultipartUploads", "CreateBucket", "CreateMultipartUpload"})


def code_of(error: StoreError) -> str:
    """Return the S3 code of the answer that an error was made from, "" when it was none."""
    cause = error.__cause__
    return str(cause.response.get("Error", {}).get("Code", "")) if isinstance(cause, ClientError) else ""


@dataclass(frozen=True)
class _Answer:
    status: int
    code: str
    details: Mapping[str, Any]
    headers: Mapping[str, str]
    operation: str

    @property
    def is_s3(self) -> bool:
        """Whether it carries S3's own description of the error; answers to HEAD cannot."""
        return self.code != str(self.status) or self.operation.startswith("Head")

    @property
    def region(self) -> str | None:
        return self.headers.get("x-amz-bucket-region") or self.details.get("Region")

    @property
    def elsewhere(self) -> str | None:
        return self.details.get("Endpoint") or self.headers.get("location")

    @property
    def server_clock(self) -> datetime | None:
        try:
            return parsedate_to_datetime(self.headers.get("date", "")).astimezone(UTC)
        except ValueError:
            return None


def answered(error: ClientError, attempt: str, location: StoreLocation) -> StoreError:
    """Return our error for an HTTP answer; its code decides where there is one, else its status."""
    details = error.response.get("Error", {})
    metadata: Mapping[str, Any] = error.response.get("ResponseMetadata", {})
    status = int(metadata.get("HTTPStatusCode", 0))
    code = str(details.get("Code", "")) or str(status)
    operation = getattr(error, "operation_name", "")
    answer = _Answer(status, code, details, metadata.get("HTTPHeaders", {}), operation)
    seen = f"{attempt}: HTTP {status} {code if code != str(status) else ''} {details.get('Message') or ''}".rstrip()
    return _judged(answer, " ".join(seen.split()), location)


def _judged(answer: _Answer, seen: str, location: StoreLocation) -> StoreError:
    if answer.status == 403 and (error := _clocks_apart(answer, seen)):
        return error
    if answer.status in REDIRECTS or (answer.status == 400 and answer.region not in (None, location.region)):
        return StoreRefused(f"{seen}; {_where_else(answer, location)}")
    kind = _kind(answer)
    if kind is StoreUnavailable:
        return StoreUnavailable(
            f"{seen}; the server is busy or restarting (try again later), or is no S3 server (check the endpoint)"
        )
    if kind is StoreRefused:
        return StoreRefused(f"{seen}; {_mend(answer, location)}")
    if kind is ArtifactMissing:
        hint = "" if answer.is_s3 else ", or check that the endpoint is an S3 server"
        return ArtifactMissing(f"{seen}; it was never written or was deleted: run the stage that makes it{hint}")
    if kind is PreconditionFailed:
        return PreconditionFailed(f"{seen}; another writer was first: read it again and decide")
    if kind is ArtifactCorrupt:
        return ArtifactCorrupt(f"{seen}; the object is shorter than expected: delete it and run its stage again")
    return StoreError(f"{seen}; the server understood and did not do it, see its log")


def _clocks_apart(answer: _Answer, seen: str) -> StoreError | None:
    """Return the error of clocks that differ, None when they agree and the answer is about something else.

    A request may be late although the clocks agree: its process was paused, or it stood in a queue. Then it is signed
    and sent again.
    """
    here, there = datetime.now(UTC), answer.server_clock
    own = f"{seen}; this machine's clock says {here:%Y-%m-%d %H:%M:%S} UTC, the server's"
    if there and abs((here - there).total_seconds()) > CLOCKS_AGREE_S:
        return StoreRefused(
            f"{own} {there:%Y-%m-%d %H:%M:%S} UTC, {abs((here - there).total_seconds()):.0f} s apart, and S3 refuses "
            "requests that are 900 s off: set the clock that is wrong"
        )
    if answer.code != SKEWED:
        return None
    if there:
        return StoreUnavailable(f"{seen}; the clocks agree, so the request arrived late: try again")
    return StoreRefused(f"{own} {answer.details.get('ServerTime', 'something else')}: set the clock that is wrong")


def _where_else(answer: _Answer, location: StoreLocation) -> str:
    """Return what to do about an answer that sends us elsewhere."""
    if answer.region and answer.region != location.region:
        return (
            f"the bucket is in region {answer.region}, asked was {location.region}: "
            f"set DRAFTWORKS_S3_REGION={answer.region}"
        )
    if answer.elsewhere:
        return f"the server points to {answer.elsewhere}: set DRAFTWORKS_S3_ENDPOINT, or the region, accordingly"
    return _mend(answer, location)


def _mend(answer: _Answer, location: StoreLocation) -> str:
    text = MEND.get(answer.code) or _mend_of_unknown(answer)
    option = f"--endpoint-url {location.endpoint} " if location.endpoint else ""
    return text.format(bucket=location.bucket, server=location.endpoint or "https://s3.amazonaws.com", option=option)


def _mend_of_unknown(answer: _Answer) -> str:
    if not answer.is_s3:
        credentials = "check the credentials; " if answer.status in (401, 403) else ""
        return f"{credentials}this is no S3 error, so perhaps no S3 server, or a proxy before one; {PATH_STYLE}"
    if answer.status == 404:
        return f"the server takes bucket {{bucket}} for something else; {PATH_STYLE}"
    return "check credentials, permissions, endpoint and region"


def _kind(answer: _Answer) -> type[StoreError]:
    status, code = answer.status, answer.code
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
        400: StoreError if answer.is_s3 else StoreRefused,
        401: StoreRefused,
        403: StoreRefused,
        404: ArtifactMissing if _is_about_a_key(answer) else StoreRefused,
        412: PreconditionFailed,
        416: ArtifactCorrupt,
    }
    return by_status.get(status, StoreError)


def _is_about_a_key(answer: _Answer) -> bool:
    """Whether a 404 can mean a missing object; for a write that is so under a condition only, and S3 says so."""
    return answer.operation not in ABOUT_BUCKETS and (answer.operation != "PutObject" or answer.is_s3)
