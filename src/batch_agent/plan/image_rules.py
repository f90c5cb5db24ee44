"""Rules for the images of a run: which images its server accepts, and how an image is identified."""

from typing import Protocol

from ..core.fast_dataclass import dataclass
from ..core.images import Image, ImageRef
from ..core.protocols.backend import Traits
from .fingerprint import fingerprint


class Identify(Protocol):
    """Reads an image and identifies it by its bytes. Blocks, and raises ValueError."""

    def __call__(self, image: Image, *, downloads: bool = False) -> ImageRef: ...


@dataclass(frozen=True, slots=True)
class ImageRules:
    """The images that a server accepts, and how they are read."""

    traits: Traits
    identify: Identify
    is_shared: bool = False
    """Whether agents may run in other processes, which have the files but not the memory of this one."""

    def checked(self, image: Image) -> ImageRef:
        """Raises ValueError for an image that cannot be read or that the server does not accept."""
        traits = self.traits
        if traits.images is False:
            raise ValueError(no_images(traits))
        found = self.identify(image, downloads=traits.name == "bedrock" and not self.is_shared)
        most, side = traits.max_image_bytes, traits.max_image_side
        if self.is_shared and found.data is not None:
            raise ValueError(
                f"{image.name!r} is in the memory of this process, and the agent may run in another one. Save it to a "
                "file that all workers can read"
            )
        if most is not None and found.size > most:
            raise ValueError(
                f"{image.name!r} has {found.size:,} bytes, and {traits.name} takes at most {most:,}. Save it smaller, "
                "or reduce it: Image(path, max_side=1568)"
            )
        if side is not None and max(found.width, found.height) > side:
            raise ValueError(
                f"{image.name!r} has {found.width}x{found.height} pixels, and {traits.name} takes at most {side:,} per "
                "side. Reduce it: Image(path, max_side=1568)"
            )
        if found.url and found.url.startswith("s3://") != (traits.name == "bedrock"):
            if traits.name == "bedrock":
                raise ValueError(f"{image.name!r}: Bedrock reads no URLs other than s3://. Download it first")
            raise ValueError(f"{image.name!r}: only Bedrock reads from S3. Use a path or an https:// URL")
        return found


def no_images(traits: Traits) -> str:
    """Error message for a run with images whose server accepts none."""
    return (
        f"The task has images, but {traits.model!r} on {traits.name} takes none. Use a model that reads images (on "
        "vLLM and SGLang: Qwen-VL, Gemma 3, LLaVA), or leave the field out of the task"
    )


def name_only(image: Image, *, downloads: bool = False) -> ImageRef:
    """An image that is not read, for plans that are not sent."""
    return ImageRef(fingerprint({"image": repr(image)}).hex(), path=image.path, url=image.url)
