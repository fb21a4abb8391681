"""Settings: where the work runs, from DRAFTWORKS_* variables (S3 credentials: the usual AWS variables)."""

import sys
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from tasks.errors import RecipeError

PROJECT_ROOT = Path(__file__).resolve().parents[2]


class Settings(BaseSettings):
    """Where: store, folders, interpreters, devices."""

    model_config = SettingsConfigDict(env_prefix="DRAFTWORKS_", frozen=True, use_attribute_docstrings=True)

    home: Path = Path("~/.local/share/draftworks")
    """Folder of everything that Draftworks keeps on this machine."""
    s3_endpoint: str | None = None
    """URL of the S3-compatible server; empty means AWS itself."""
    s3_bucket: str = Field(default="draftworks", min_length=3)
    """Bucket of the artifacts; it must exist."""
    s3_prefix: str = ""
    """Key prefix inside the bucket."""
    s3_region: str = "us-east-1"
    """Region that requests are signed for."""
    s3_browser_url: str | None = None
    """Template of an http link to an object, with {bucket} and {key}; shown beside s3:// URIs."""
    scratch: Path | None = None
    """Working files; may be deleted at any time between runs. Empty: HOME/scratch."""
    target_api_key: SecretStr | None = None
    """Key that the servers of generation.endpoints want (vllm serve --api-key); sent as a bearer token."""
    vllm_python: Path = PROJECT_ROOT / ".venv-vllm" / "bin" / "python"
    """Python interpreter of the environment that has vLLM."""
    train_python: Path = Path(sys.executable)
    """Python interpreter of the environment that has speculators."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where vLLM and the training run; auto means CUDA where it is found."""
    gpu_ids: str | None = None
    """CUDA_VISIBLE_DEVICES of the child processes."""
    server_start_s: float = Field(default=900.0, gt=0)
    """Seconds a managed vLLM server may take until it answers."""

    @property
    def home_dir(self) -> Path:
        """Return the home folder, ~ expanded."""
        return self.home.expanduser()

    @property
    def scratch_dir(self) -> Path:
        """Return the folder of working files."""
        return self.scratch.expanduser() if self.scratch else self.home_dir / "scratch"

    @property
    def targets_dir(self) -> Path:
        """Return the folder where a target given by a bare name is looked up."""
        return self.home_dir / "targets"


def device_of(settings: Settings) -> Literal["cpu", "cuda"]:
    """Return where vLLM and the training run; auto looks for an NVIDIA or AMD driver (torch calls both cuda)."""
    if settings.device != "auto":
        return settings.device
    return "cuda" if any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists() else "cpu"


def load_settings() -> Settings:
    """Return the settings of this process's environment. Raises RecipeError that names the variable."""
    try:
        return Settings()
    except ValidationError as error:
        faults = "; ".join(f"DRAFTWORKS_{str(f['loc'][0]).upper()}: {f['msg']}" for f in error.errors())
        raise RecipeError(f"the environment holds an unusable setting: {faults}") from error
