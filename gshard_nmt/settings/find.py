"""Finds the file of a config, by path or by name."""

import pathlib

from gshard_nmt.errors import UserError, did_you_mean


def configs_folder() -> pathlib.Path:
    """Returns the folder of the configs that come with the package.

    A wheel has them inside the package, a checkout beside it.
    """
    package = pathlib.Path(__file__).parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def find_config(source: str) -> pathlib.Path:
    """Returns the file of a config.

    Args:
      source: a path, or a name: the name of a file in configs/experiments without `.gin`.

    Raises:
      UserError: there is no such file or name. The message lists the names.
    """
    path = pathlib.Path(source)
    if path.is_file():
        return path
    folder = configs_folder()
    if path.is_dir():
        inside = path / "config.gin"
        hint = f"; did you mean {str(inside)!r}?" if inside.is_file() else "; give a .gin file."
        raise UserError(f"--config {source} is a folder{hint}")
    names = {file.stem: file for file in sorted(folder.glob("experiments/*.gin"))}
    if source in names:
        return names[source]
    if path.suffix == ".gin" or len(path.parts) > 1:
        if not path.is_absolute() and (folder / path).is_file():
            return folder / path
        problem = f"there is no file {source}"
    else:
        problem = f"there is no config called {source!r}"
    raise UserError(
        f"{problem}{did_you_mean(path.stem, names)} Give the path of a .gin file, or one of the "
        f"names: {', '.join(names)}."
    )
