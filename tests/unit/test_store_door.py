"""Guards the door: every error of botocore and every HTTP answer becomes one of ours, with what to do."""

import inspect
import ssl

import boto3.exceptions
import botocore.exceptions as outside
import pytest
import urllib3.exceptions
from botocore.parsers import ResponseParserError

from tasks.errors import (
    ArtifactCorrupt,
    ArtifactMissing,
    PreconditionFailed,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from tasks.store.door import OUTSIDE, at_the_door, to_store_error
from tasks.store.location import StoreLocation

HERE = StoreLocation("http://127.0.0.1:9", "bucket", "prefix")
TRANSIENT = {
    outside.HTTPClientError,
    outside.ConnectionError,
    outside.EndpointConnectionError,
    outside.ConnectionClosedError,
    outside.ReadTimeoutError,
    outside.ConnectTimeoutError,
    outside.ProxyConnectionError,
    outside.ResponseStreamingError,
    outside.IncompleteReadError,
}
NOT_RAISED = {  # two test stubs, two warnings, and mistakes in a service's description: none comes from a call
    outside.UndefinedModelAttributeError,
    outside.MissingServiceIdError,
    outside.UnsupportedTLSVersionWarning,
    outside.ImminentRemovalWarning,
}


def classes_of(module: object) -> list[type[Exception]]:
    found = [item for _, item in inspect.getmembers(module, inspect.isclass) if issubclass(item, Exception)]
    return [item for item in found if item not in NOT_RAISED and not issubclass(item, Warning)]


@pytest.mark.parametrize(
    "theirs", [*classes_of(outside), *classes_of(boto3.exceptions)], ids=lambda item: item.__name__
)
def test_every_class_of_botocore_and_boto3_is_mapped(theirs: type[Exception]) -> None:
    error = theirs.__new__(theirs)
    error.response = {}  # type: ignore[attr-defined]
    assert isinstance(error, OUTSIDE)
    ours = to_store_error(error, "read", HERE, "a/key")
    assert isinstance(ours, StoreError)
    assert isinstance(ours, StoreUnavailable) == (theirs in TRANSIENT)
    assert "read s3://bucket/prefix/a/key at http://127.0.0.1:9" in str(ours)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (ResponseParserError("<html>"), StoreRefused),
        (ValueError("invalid literal for int()"), StoreRefused),
        (KeyError("UploadId"), StoreRefused),
        (ssl.SSLCertVerificationError("self-signed"), StoreRefused),
        (ConnectionResetError(104, "reset"), StoreUnavailable),
        (TimeoutError("slow"), StoreUnavailable),
        (urllib3.exceptions.ProtocolError("cut"), StoreUnavailable),
    ],
)
def test_errors_of_the_libraries_below_are_mapped(theirs: Exception, ours: type[StoreError]) -> None:
    with pytest.raises(ours) as caught, at_the_door("list", HERE):
        raise theirs
    assert caught.value.__cause__ is theirs


ANSWERS: list[tuple[int, str, type[StoreError]]] = [
    (301, "PermanentRedirect", StoreRefused),
    (302, "", StoreRefused),
    (307, "TemporaryRedirect", StoreRefused),
    (400, "", StoreRefused),
    (400, "InvalidArgument", StoreError),
    (400, "EntityTooSmall", StoreError),
    (400, "InvalidPart", ArtifactMissing),
    (400, "RequestTimeout", StoreUnavailable),
    (400, "IncompleteBody", StoreUnavailable),
    (400, "BadDigest", StoreUnavailable),
    (400, "XAmzContentSHA256Mismatch", StoreUnavailable),
    (400, "ExpiredToken", StoreRefused),
    (400, "AuthorizationHeaderMalformed", StoreRefused),
    (400, "IllegalLocationConstraintException", StoreRefused),
    (401, "Unauthorized", StoreRefused),
    (403, "AccessDenied", StoreRefused),
    (403, "InvalidAccessKeyId", StoreRefused),
    (403, "SignatureDoesNotMatch", StoreRefused),
    (403, "RequestTimeTooSkewed", StoreRefused),
    (403, "InvalidObjectState", StoreRefused),
    (403, "403", StoreRefused),
    (404, "NoSuchBucket", StoreRefused),
    (404, "NoSuchKey", ArtifactMissing),
    (404, "NoSuchUpload", ArtifactMissing),
    (404, "404", ArtifactMissing),
    (405, "MethodNotAllowed", StoreRefused),
    (408, "", StoreUnavailable),
    (409, "OperationAborted", StoreUnavailable),
    (409, "ConditionalRequestConflict", StoreUnavailable),
    (409, "BucketAlreadyOwnedByYou", StoreError),
    (409, "", StoreUnavailable),
    (412, "PreconditionFailed", PreconditionFailed),
    (416, "InvalidRange", ArtifactCorrupt),
    (418, "Teapot", StoreError),
    (425, "", StoreUnavailable),
    (429, "", StoreUnavailable),
    (429, "TooManyRequests", StoreUnavailable),
    (500, "InternalError", StoreUnavailable),
    (501, "NotImplemented", StoreRefused),
    (502, "", StoreUnavailable),
    (503, "SlowDown", StoreUnavailable),
    (503, "ServiceUnavailable", StoreUnavailable),
    (504, "", StoreUnavailable),
    (507, "XMinioStorageFull", StoreRefused),
    (507, "", StoreRefused),
    (200, "InternalError", StoreUnavailable),  # a completed upload may answer 200 and an error inside
]


@pytest.mark.parametrize(("status", "code", "ours"), ANSWERS)
def test_every_http_answer_is_mapped(status: int, code: str, ours: type[StoreError]) -> None:
    response = {"Error": {"Code": code, "Message": "said so"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    error = to_store_error(outside.ClientError(response, "GetObject"), "read", HERE, "k")  # type: ignore[arg-type]
    assert type(error) is ours
    assert f"read s3://bucket/prefix/k at http://127.0.0.1:9: HTTP {status}" in str(error)
    assert "; " in str(error)


def test_a_missing_bucket_names_both_commands() -> None:
    response = {"Error": {"Code": "NoSuchBucket"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
    message = str(to_store_error(outside.ClientError(response, "GetObject"), "read", HERE, "k"))  # type: ignore[arg-type]
    assert "`draftworks up`" in message
    assert "`aws --endpoint-url http://127.0.0.1:9 s3 mb s3://bucket`" in message


def test_our_own_errors_pass_the_door_unchanged() -> None:
    with pytest.raises(ArtifactCorrupt, match="^mine$"), at_the_door("read", HERE):
        raise ArtifactCorrupt("mine")
