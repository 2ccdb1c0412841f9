"""Names that users give: whether they mean a path on this machine, and one that is there."""

from pathlib import Path


def existing_path(name: str) -> Path | None:
    """The file or folder of a name, where there is one; '~' is a home."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # nobody is called so
        return None
    return path if path.exists() else None


def missing_path(name: str) -> str | None:
    """What to say of a name that looks like a path where nothing is; None for all other names.

    A path begins with '.', '/' or '~', has several slashes, ends in '.safetensors', or begins with
    a folder that is here. All else may be known elsewhere, such as 'owner/name' on the hub.
    """
    if existing_path(name) is not None:
        return None
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".safetensors"):
        return f"there is no file or folder {name!r}"
    first, slash, _ = name.partition("/")
    if slash and Path(first).is_dir():
        return (
            f"there is no file or folder {name!r} (the hub is not asked, since a folder {first!r} "
            "is here; for a name on the hub run this elsewhere)"
        )
    return None
