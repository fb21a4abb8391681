"""The one place where errors of botocore, urllib3 and the socket become ours.

StoreUnavailable    no complete answer: lost connection, timeout (transient)
StoreRefused        no credentials, no TLS, unusable settings, an answer that is not S3's
and what tasks/store/answers.py makes of an answer that says no.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import boto3.exceptions
import botocore.exceptions as outside
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from tasks.errors import StoreError, StoreRefused, StoreUnavailable
from tasks.store.answers import answered
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
        return answered(error, attempt, location)
    if isinstance(error, ssl.SSLError | outside.SSLError):
        return StoreRefused(f"{attempt}: no trusted TLS connection ({error}); check the URL and AWS_CA_BUNDLE")
    if isinstance(error, NO_CREDENTIALS):
        return StoreRefused(f"{attempt}: {error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if isinstance(error, LOST):
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        return StoreUnavailable(f"{attempt}: no complete answer ({what}); check that the server runs and try again")
    if isinstance(error, NOT_S3):
        seen = f"it lacks {error}" if isinstance(error, KeyError) else str(error)[:200].replace("\n", " ")
        return StoreRefused(f"{attempt}: the answer is not S3's ({seen}); check that the endpoint is an S3 server")
    return StoreRefused(f"{attempt}: {type(error).__name__}: {error}; check the S3 settings and credentials")
