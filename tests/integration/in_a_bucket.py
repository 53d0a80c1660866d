"""Runs the programs on a bucket that this process serves; see test_bucket.py.

`python -m tests.integration.in_a_bucket PREPARED CORPUS` uploads PREPARED/data, trains, resumes,
decodes and evaluates in the bucket, and copies the run folder to PREPARED/downloaded.
"""

import sys
from pathlib import Path

from gshard_nmt.cli import commands
from tests import fake_bucket
from tests.integration.conftest import gin


def main(prepared: Path, corpus: str) -> None:
    """Runs the programs, and exits with an error if one of them does."""
    with fake_bucket.serving() as bucket:
        for file in (prepared / "data").rglob("*"):
            if file.is_file():
                name = file.relative_to(prepared).as_posix()
                bucket.write(f"bucket/{name}", file.read_bytes())
        workdir = "--workdir=gs://bucket/run"
        for steps in (4, 6):
            flags = ["--config=demo", "--data=gs://bucket/data", workdir]
            flags += gin(**{"Train.steps": steps})
            assert commands.main(["train", *flags]) == 0
        text = prepared / "text"
        text.write_text("der elppa\n")
        flags = [workdir, "--lang=fr", f"--input={text}", f"--output={prepared / 'translation'}"]
        assert commands.main(["decode", *flags]) == 0
        report = [f"--corpus={corpus}", f"--report={prepared / 'report'}"]
        assert commands.main(["eval", workdir, *report]) == 0
        data = ["--config=demo", "--data=gs://bucket/data", *gin()]
        for verb in ("show", "plan"):
            assert commands.main(["data", verb, *data]) == 0
        assert commands.main(["checkpoint", "verify", workdir]) == 0
        for name in bucket.names("bucket/run/"):
            file = prepared / "downloaded" / name.removeprefix("bucket/run/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bucket.read(name)[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
