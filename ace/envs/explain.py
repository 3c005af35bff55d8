"""One-line descriptions of errors in code outside this package: what went wrong, and where."""

import importlib
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

from ace.envs.api import TaskError

OURS = str(Path(__file__).parents[1])
LIBRARIES = (sysconfig.get_paths()["stdlib"], "site-packages")


def explain(error: BaseException) -> str:
    """Give the error's type and message with file and line, without line breaks."""
    message, where = str(error), _where(error)
    if isinstance(error, SyntaxError) and error.filename:
        message, where = error.msg, f"{error.filename}, line {error.lineno}"
    message = " ".join(message.split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{text} ({where})" if where else text


def import_module(name: str, user: str) -> ModuleType:
    """Import a module that is not ours; its errors become a TaskError that names its `user`."""
    if name.endswith(".py"):
        module = name.removesuffix(".py").replace("/", ".").strip(".")
        raise TaskError(f"{user}: {name} is a file; name its module, {module}")
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # SystemExit: a script that ends itself
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise TaskError(
                f"{user}: {error}; start in the folder that holds the module,"
                " or put that folder on PYTHONPATH"
            ) from error
        raise TaskError(
            f"{user}: importing {name} failed: {explain(error)}; correct the module until"
            f" `python -c 'import {name}'` works"
        ) from error


def where(module: ModuleType) -> str:
    """The file of a module; a file of that name in the current folder is named too if the module is
    another one, which hides it."""
    found = getattr(module, "__file__", None)
    if found is None and hasattr(module, "__path__"):
        return "a folder without __init__.py"
    found = found or "built in"
    path = Path.cwd().joinpath(*module.__name__.split("."))
    beside = [p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists()]
    if beside and not (Path(found).exists() and beside[0].samefile(found)):
        return f"{found}, which hides your {beside[0].relative_to(Path.cwd())}: rename yours"
    return found


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith((OURS, "<"))]  # "<": no file
    # The innermost line of the user's own code says more than one deep inside a library.
    own = [f for f in theirs if not any(part in f.filename for part in LIBRARIES)]
    found = (own or theirs)[-1:]
    return f"{found[0].filename}, line {found[0].lineno}" if found else ""
