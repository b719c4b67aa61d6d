"""Uploading an exported folder to Hugging Face's hub, only when asked to."""

from pathlib import Path

from foundation.config import ConfigError

PATIENCE = 120.0
"""Seconds without any answer from the hub; its own client waits for ever."""


def require_repository(name: str) -> None:
    """Checks, before anything is written, that the hub would accept the repository name and that there is a token.

    Raises:
        ConfigError: the name is invalid, or no token is configured.
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
    """Uploads the folder in one commit, creating the repository if necessary; returns its address.

    Raises:
        ConfigError: the hub refuses or cannot be reached; the folder is complete nevertheless.
    """
    from huggingface_hub import HfApi, get_session

    get_session().timeout = PATIENCE
    hub = HfApi()
    try:
        hub.create_repo(name, exist_ok=True)
        return hub.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Export of electra-sampler"
        ).repo_url.url
    except Exception as error:  # the hub's client raises a dozen types; each means that the upload failed
        reason = f"{type(error).__name__}: {(str(error).splitlines() or ['no more is known'])[0]}"
        raise ConfigError(
            f"push: the upload to {name} failed ({reason}); {folder} is complete: try `hf upload {name} {folder}`"
        ) from None
