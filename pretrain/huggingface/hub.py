"""Uploading an exported folder to Hugging Face's hub, only when asked to."""

from pathlib import Path

from foundation.config import ConfigError


def require_repository(name: str) -> None:
    """Refuses a name that the hub would refuse, or an upload without a token, before anything is written.

    Raises:
        ConfigError: either.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(f"push: got {name!r}, expected OWNER/NAME: {str(error).splitlines()[0]}") from None
    if name.count("/") != 1:
        raise ConfigError(f"push: got {name!r}, expected OWNER/NAME")
    if get_token() is None:
        raise ConfigError("push: the hub needs a token; run `hf auth login`, or set HF_TOKEN")


def push(folder: Path, name: str) -> str:
    """Uploads the folder in one commit, makes the repository where there is none, and returns its address.

    Raises:
        ConfigError: the hub refuses or cannot be reached; the folder is complete nevertheless.
    """
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        hub.create_repo(name, exist_ok=True)
        return hub.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Export of electra-sampler"
        ).repo_url.url
    except Exception as error:  # the hub's client raises a dozen types; each means that the upload failed
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"push: the upload to {name} failed ({reason}); {folder} is complete: try `hf upload {name} {folder}`"
        ) from None
