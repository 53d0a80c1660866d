"""A bucket of Google Cloud Storage without a network, for tests of gs:// paths.

The objects live in memory. Programs reach a bucket in three ways, and all of them see the same objects:
epath asks fsspec's "gcs" filesystem, orbax asks `google.cloud.storage` about the kind of the bucket,
and tensorstore's own "gcs" driver speaks HTTP. `serving` replaces the first two, and answers the third
on a port of loopback.
"""

import contextlib
import datetime
import http.server
import io
import itertools
import json
import sys
import threading
import types
import urllib.parse
from collections.abc import Iterator
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.registry import _registry


class Objects:
    """The objects of all buckets: name, such as `bucket/run/config.gin`, to content and generation.

    Attributes:
      full: a write raises OSError if it is set, as a bucket without permission to write does.
    """

    def __init__(self) -> None:
        self.full = False
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._generations = itertools.count(1)
        self._lock = threading.Lock()

    def names(self, prefix: str = "") -> list[str]:
        """Returns the names that begin with `prefix`, sorted."""
        with self._lock:
            return sorted(name for name in self._objects if name.startswith(prefix))

    def read(self, name: str) -> tuple[bytes, int] | None:
        """Returns the content and the generation of an object; None if there is no such object."""
        with self._lock:
            return self._objects.get(name)

    def write(self, name: str, content: bytes, if_generation: int | None = None) -> int | None:
        """Writes an object; returns its generation, or None if it was not `if_generation` (0: none)."""
        with self._lock:
            generation = self._objects.get(name, (b"", 0))[1]
            if if_generation not in (None, generation):
                return None
            self._objects[name] = (bytes(content), next(self._generations))
            return self._objects[name][1]

    def remove(self, name: str) -> bool:
        """Removes an object; returns whether there was one."""
        with self._lock:
            return self._objects.pop(name, None) is not None


class BucketFileSystem(fsspec.AbstractFileSystem):
    """fsspec's view of the objects. As in a real bucket, there is no folder without an object."""

    protocol = ("gs", "gcs")
    cachable = False
    objects: ClassVar[Objects]

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        entries: dict[str, dict[str, Any]] = {}
        for name in self.objects.names(f"{path}/"):
            head, separator, _ = name.removeprefix(f"{path}/").partition("/")
            child = f"{path}/{head}"
            entries[child] = self._entry(child, is_folder=bool(separator))
        if not entries:
            if self.objects.read(path) is None:
                raise FileNotFoundError(path)
            entries[path] = self._entry(path, is_folder=False)
        return list(entries.values()) if detail else list(entries)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if self.objects.read(path) is not None:
            return self._entry(path, is_folder=False)
        if self.objects.names(f"{path}/"):
            return self._entry(path, is_folder=True)
        raise FileNotFoundError(path)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        pass

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def rmdir(self, path: str) -> None:
        pass

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        content, _ = self.objects.read(self._strip_protocol(path1)) or (None, 0)
        if content is None:
            raise FileNotFoundError(path1)
        self.objects.write(self._strip_protocol(path2), content)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        path = self._strip_protocol(path)
        below = self.objects.names(f"{path}/") if recursive else []
        removed = [self.objects.remove(name) for name in (path, *below)]
        if not any(removed):
            raise FileNotFoundError(path)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode == "rb":
            entry = self.objects.read(path)
            if entry is None:
                raise FileNotFoundError(2, "No such file or directory", f"gs://{path}")
            return io.BytesIO(entry[0])
        if "a" in mode:
            raise NotImplementedError("an object cannot be appended to")
        return _Upload(self.objects, path)

    def _entry(self, name: str, is_folder: bool) -> dict[str, Any]:
        content, generation = self.objects.read(name) or (b"", 0)
        kind, size = ("directory", 0) if is_folder else ("file", len(content))
        mtime = datetime.datetime.fromtimestamp(generation, datetime.UTC)
        return {"name": name, "size": size, "type": kind, "mtime": mtime, "generation": generation}


class _Upload(io.BytesIO):
    """A file that becomes an object when it is closed without an error."""

    def __init__(self, objects: Objects, name: str) -> None:
        super().__init__()
        self._objects, self._name = objects, name

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            super().close()

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            if self._objects.full:
                raise PermissionError(13, "the account may not write", f"gs://{self._name}")
            self._objects.write(self._name, content)


class _Handler(http.server.BaseHTTPRequestHandler):
    """The requests of tensorstore's "gcs" driver, as the JSON API of Cloud Storage answers them."""

    protocol_version = "HTTP/1.1"
    # Headers and body leave in one packet; two would wait 40 ms for each other.
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    objects: ClassVar[Objects]

    def do_GET(self) -> None:
        bucket, name, query = self._address()
        if name is None:
            return self._list(bucket, query)
        entry = self.objects.read(f"{bucket}/{name}")
        if entry is None:
            return self._answer(404, b"{}")
        content, generation = entry
        if query.get("ifGenerationNotMatch") == str(generation):
            return self._answer(304, b"")
        start, total, status = 0, len(content), 200
        if bounds := self.headers.get("Range"):
            first, _, last = bounds.removeprefix("bytes=").partition("-")
            start = int(first) if first else total - int(last)
            content = content[start : int(last) + 1 if first and last else None]
            status = 206
        stop = start + len(content) - 1
        headers = {"x-goog-generation": generation}
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{stop}/{total}"
        return self._answer(status, content, headers)

    def do_POST(self) -> None:
        bucket, _, query = self._address()
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        expected = query.get("ifGenerationMatch")
        name = f"{bucket}/{query['name']}"
        if self.objects.full:
            return self._answer(403, b'{"error": {"message": "the account may not write"}}')
        generation = self.objects.write(name, content, int(expected) if expected else None)
        if generation is None:
            return self._answer(412, b"{}")
        body = {"name": query["name"], "bucket": bucket, "generation": str(generation)}
        return self._answer(200, json.dumps(body | {"size": str(len(content))}).encode())

    def do_DELETE(self) -> None:
        bucket, name, _ = self._address()
        self._answer(204 if self.objects.remove(f"{bucket}/{name}") else 404, b"")

    def log_message(self, *_: object) -> None:
        """Keeps the requests out of the output of the tests."""

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix = query.get("prefix", "")
        names = [n.removeprefix(f"{bucket}/") for n in self.objects.names(f"{bucket}/{prefix}")]
        first, last = query.get("startOffset", ""), query.get("endOffset")
        names = [n for n in names if n >= first and (not last or n < last)]
        items = []
        for name in names:
            content, generation = self.objects.read(f"{bucket}/{name}") or (b"", 0)
            items.append({"name": name, "generation": str(generation), "size": str(len(content))})
        self._answer(200, json.dumps({"items": items}).encode())

    def _address(self) -> tuple[str, str | None, dict[str, str]]:
        """Returns bucket, name of the object (None if there is none in the path), and query."""
        parts = urllib.parse.urlsplit(self.path)
        _, _, tail = parts.path.partition("/b/")
        bucket, _, rest = tail.partition("/o")
        name = urllib.parse.unquote(rest.removeprefix("/")) if rest else None
        return bucket, name, dict(urllib.parse.parse_qsl(parts.query))

    def _answer(self, status: int, body: bytes, headers: dict[str, Any] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def serving() -> Iterator[Objects]:
    """Serves buckets to this process for the time of the block."""
    objects = Objects()
    filesystem = type("Bucket", (BucketFileSystem,), {"objects": objects})
    handler = type("Handler", (_Handler,), {"objects": objects})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        for protocol in ("gs", "gcs"):
            patch.setitem(_registry, protocol, filesystem)
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", f"http://127.0.0.1:{server.server_port}")
        patch.setenv("TENSORSTORE_GCS_HTTP_VERSION", "1.1")
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "token")
        patch.setitem(sys.modules, "gcsfs", types.ModuleType("gcsfs"))
        patch.setitem(sys.modules, "google.cloud", _cloud())
        patch.setitem(sys.modules, "google.cloud.storage", sys.modules["google.cloud"].storage)
        _forget_filesystems()
        try:
            yield objects
        finally:
            _forget_filesystems()
            server.shutdown()
            server.server_close()
            thread.join()


def _cloud() -> types.ModuleType:
    """Returns `google.cloud` with a storage client whose buckets have no real folders."""
    bucket = types.SimpleNamespace(hierarchical_namespace_enabled=False)
    client = types.SimpleNamespace(get_bucket=lambda name: bucket)
    cloud, storage = types.ModuleType("google.cloud"), types.ModuleType("google.cloud.storage")
    storage.Client = lambda: client  # type: ignore[attr-defined]
    cloud.storage = storage  # type: ignore[attr-defined]
    return cloud


def _forget_filesystems() -> None:
    """Empties epath's memory of filesystems, and of whether TensorFlow reads gs://."""
    from etils.epath import backend, gpath

    backend._FileSystemSpecBackend._get_filesystem.cache_clear()
    gpath._is_tf_installed.cache_clear()
