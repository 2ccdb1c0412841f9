"""What goes wrong with pictures, in words for the person who passed them."""


class PictureError(ValueError):
    """A picture that cannot be used: what was got, what is allowed, what to do."""


class InputError(ValueError):
    """A path, list, pattern or shard that names no usable pictures."""


class DataError(ValueError):
    """Images that cannot be trained on: what was got, what is allowed, what to do."""


class WorkerError(RuntimeError):
    """A worker process that was ended from outside."""


def reason(error: Exception, most: int = 120) -> str:
    """Why a library failed, on one line of bounded length, without characters a terminal obeys."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= most else f"{text[:most]}..."
