"""Decision records are linked from other documents, and each has a unique number."""

from tests.docs.markdown import Document
from tools.workspace import ROOT

FOLDER = ROOT / "docs" / "decisions"
RECORDS = sorted(path.name for path in FOLDER.glob("[0-9]*.md"))


def test_every_record_is_linked() -> None:
    linked = {target for _, target in Document(FOLDER / "README.md").links()}
    assert [name for name in RECORDS if name not in linked] == []


def test_every_record_has_its_own_number() -> None:
    numbers = [name[:4] for name in RECORDS]
    assert len(numbers) == len(set(numbers))
