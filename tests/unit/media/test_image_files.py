"""Images on disk and in memory: their formats, their references, and the errors that name them."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow
from tests.support.pictures import animation, pdf, picture, saved

from batch_agent import Image
from batch_agent.core.errors import BackendError, ErrorKind
from batch_agent.core.images import ImageRef, PlacedImage, as_image, images_of
from batch_agent.core.images.image_format import is_animated, media_type_of, pixels_of
from batch_agent.core.messages import User
from batch_agent.media.image_files import ImageFolder, identify, read_image, with_image_data

FORMATS: list[tuple[str, dict[str, Any]]] = [
    ("PNG", {}),
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("GIF", {}),
    ("WEBP", {}),
    ("WEBP", {"lossless": True}),
    ("WEBP", {"exif": b"Exif\0\0"}),
]


@pytest.mark.parametrize(("kind", "options"), FORMATS, ids=str)
@pytest.mark.parametrize("size", [(1, 1), (40, 30), (301, 7)])
def test_type_and_size_are_read_from_the_bytes(kind: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    data = picture(*size, kind, **options)
    media_type = media_type_of(data[:64])
    assert media_type == f"image/{kind.lower()}"
    assert pixels_of(data, media_type) == size
    assert not is_animated(data, media_type)
    assert pixels_of(data[:8], media_type) is None


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_an_animation_is_refused_and_its_first_frame_sent_on_request(kind: str) -> None:
    data = animation(kind)
    assert is_animated(data, f"image/{kind.lower()}")
    with pytest.raises(ValueError, match="animated: save one frame"):
        identify(Image(data))
    assert read_image(identify(Image(data, max_side=5)))[:4] == b"\x89PNG"


@pytest.mark.parametrize("head", [b"", b"text", b"BM, said the man", b"RIFF....WAVE", b"\0\0\0 ftypisom", b"%PDF-1.4"])
def test_other_data_is_not_an_image(head: bytes) -> None:
    assert media_type_of(head) is None
    assert as_image(head) is None


def test_what_is_an_image_without_being_told() -> None:
    assert as_image(picture()) == Image(picture())
    assert as_image(Pillow.new("RGB", (2, 2))) is not None
    assert as_image("photo.png") is None
    assert len(images_of([picture(), Image("a.png")])) == 2
    assert images_of([picture(), "text"]) == images_of([]) == ()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (picture(kind="BMP"), "is image/bmp, which models do not take: convert it to PNG"),
        (picture(kind="TIFF"), "is image/tiff"),
        (b"hello world", "is not an image: it begins with b'hello wo'"),
        (picture()[:20], "is damaged: its size cannot be read"),
        (pdf("x"), "is a PDF: name a page, as in Image\\(path, page=1\\)"),
    ],
)
def test_a_file_that_no_model_takes_is_named(tmp_path: Path, data: bytes, problem: str) -> None:
    path = saved(tmp_path / "it.png", data)
    with pytest.raises(ValueError, match=f"it.png.*{problem}"):
        identify(Image(path))


def test_a_file_that_changes_or_goes_between_start_and_sending_is_an_error_of_its_agent(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", picture())
    message = User("?", images=(PlacedImage(0, identify(Image(path))),))
    saved(path, picture(color=9))
    with pytest.raises(BackendError, match=r"a.png' has changed since the agent read it") as changed:
        with_image_data((message,))
    assert changed.value.kind is ErrorKind.BAD_INPUT
    assert not changed.value.retryable
    path.unlink()
    with pytest.raises(BackendError, match=r"a.png' cannot be read: No such file"):
        with_image_data((message,))


def test_an_image_of_a_process_that_has_ended_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="give the same inputs again"):
        read_image(ImageRef("abc", "image/png", 1, 1, 1))


def test_a_large_image_is_reduced_only_on_request(tmp_path: Path) -> None:
    path = saved(tmp_path / "big.jpg", picture(400, 200, "JPEG"))
    assert read_image(identify(Image(path))) == path.read_bytes()
    small = identify(Image(path, max_side=100))
    assert (small.width, small.height, small.media_type) == (100, 50, "image/jpeg")
    assert pixels_of(read_image(small), "image/jpeg") == (100, 50)
    assert identify(Image(path, max_side=400)).max_side is None


def test_a_page_of_a_pdf_is_a_picture(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pdf", pdf("one", "two"))
    page = identify(Image(path, page=2))
    assert (page.width, page.height, page.media_type) == (300, 150, "image/png")
    assert pixels_of(read_image(page), "image/png") == (300, 150)
    assert pixels_of(read_image(identify(Image(path, page=1, max_side=60))), "image/png") == (60, 30)
    with pytest.raises(ValueError, match="has 2 pages, and page 3 is asked for"):
        identify(Image(path, page=3))


def test_an_image_that_a_tool_made_becomes_a_file_by_its_digest(tmp_path: Path) -> None:
    made = identify(Image(picture()))
    assert made.data is not None
    kept = ImageFolder(tmp_path).save(made)
    assert kept == ImageFolder(tmp_path).save(made)
    assert (kept.data, Path(kept.path).parent) == (None, tmp_path / "images")
    assert read_image(kept) == picture()
    folder = ImageFolder()
    temporary = folder.save(made)
    assert read_image(temporary) == picture()
    folder.close()
    assert not Path(temporary.path).exists()


@pytest.mark.parametrize("source", ["", b"", 3, None])
def test_a_source_that_is_no_image_is_refused_at_once(source: Any) -> None:
    with pytest.raises(ValueError, match=r"Image\(...\)"):
        Image(source)


def test_a_data_url_is_its_bytes() -> None:
    from base64 import b64encode

    assert Image("data:image/png;base64," + b64encode(picture()).decode()) == Image(picture())
    with pytest.raises(ValueError, match="not Base64"):
        Image("data:image/png;base64,%%%")
