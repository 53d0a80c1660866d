"""Packaging of gshard-nmt: version ranges and programs. Exact pins live in requirements.lock."""

import pathlib
import re

import setuptools

HERE = pathlib.Path(__file__).parent
(VERSION,) = re.findall(r'__version__ = "(.+)"', (HERE / "gshard_nmt/__init__.py").read_text())

# The lower bounds are what the code needs. The upper bounds stop before the next release that may
# break it. tensorflow-text and tensorflow must have the same minor version. tensorflow-text 2.21.0
# does not load with tensorflow 2.21.0, because a symbol is missing, so we need 2.21.1 or later. jax,
# jaxlib and libtpu must be of one release. gshard-export needs tensorflow-text.
REQUIRES = [
    "absl-py>=2.1",
    "anyascii>=0.3.2",
    "babel>=2.17",
    "etils>=1.13",
    "fsspec>=2024.10",
    "gin-config>=0.5",
    "jax>=0.10.2,<0.11",
    "jaxlib>=0.10.2,<0.11",
    "lxml>=6",
    "markdown-it-py>=3,<5",
    "matplotlib>=3.9",
    "ml-dtypes>=0.5",
    "numpy>=2.0",
    "orbax-checkpoint>=0.11,<0.13",
    "polib>=1.2",
    "rich>=13.7",
    "sacrebleu>=2.5,<3",
    "safetensors>=0.7",
    "scipy>=1.13",
    "sentencepiece>=0.2",
    "starlette>=1.0,<2",
    "tensorboardX>=2.6",
    "tensorflow>=2.21,<2.22",
    "tensorflow-text>=2.21.1,<2.22",
    "tensorstore>=0.1.70",
    "uvicorn>=0.40,<1",
    "zstandard>=0.22",
]

EXTRAS = {
    # For a TPU slice. It also has the compiler for slices that are not there.
    "tpu": ["jax[tpu]>=0.10.2,<0.11"],
    "cuda": ["jax[cuda13]>=0.10.2,<0.11"],
    # For --data and --workdir in Google Cloud Storage, gs://. orbax needs the second one.
    "gcs": ["gcsfs>=2024.10", "google-cloud-storage>=2.18"],
    # For --corpus in Amazon S3 and stores with the same protocol, s3://.
    "s3": ["s3fs>=2024.10"],
    # For the filter "language" of gshard-data prepare, and for the detection of gshard-serve. Its wheel
    # contains the model of 140 languages.
    "langid": ["py3langid>=0.4,<0.5"],
    # For gshard-export --format ctranslate2.
    "ctranslate2": ["ctranslate2>=4.6,<5"],
    # For gshard-data prepare --scheduler.
    "cluster": ["distributed>=2025.1"],
    # The wheels of these three have message catalogues in 99, 60 and 70 languages, so that even a
    # machine without any system catalogue has a corpus to train on.
    "demo": ["django>=5.2,<6", "djangorestframework>=3.16", "sphinx>=8.2"],
    # libretranslatepy is the client that the tests of gshard-serve use.
    "dev": [
        *("ctranslate2>=4.6,<5", "hypothesis>=6.100", "libretranslatepy>=2.1", "mypy>=1.15"),
        *("py3langid>=0.4,<0.5", "pytest>=8.3", "pytest-xdist>=3.6", "ruff>=0.12"),
    ],
}

setuptools.setup(
    name="gshard-nmt",
    version=VERSION,
    description="Massively multilingual translation with GShard's sharded Mixture of Experts",
    long_description=(HERE / "README.md").read_text() if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.14",
    packages=[*setuptools.find_packages(include=["gshard_nmt*"]), "gshard_nmt.configs"],
    package_dir={"gshard_nmt.configs": "configs"},
    package_data={"gshard_nmt.evaluation.report": ["*.html"], "gshard_nmt.configs": ["*/*.gin"]},
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": [
            "gshard-data = gshard_nmt.cli.commands:main",
            "gshard-checkpoint = gshard_nmt.cli.commands:main",
            "gshard-train = gshard_nmt.cli.commands:main",
            "gshard-decode = gshard_nmt.cli.commands:main",
            "gshard-eval = gshard_nmt.cli.commands:main",
            "gshard-export = gshard_nmt.cli.commands:main",
            "gshard-import = gshard_nmt.cli.commands:main",
            "gshard-inspect = gshard_nmt.cli.commands:main",
            "gshard-serve = gshard_nmt.cli.commands:main",
        ]
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Environment :: GPU :: NVIDIA CUDA :: 13",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
)
