"""Offscreen rendering of a MuJoCo simulation. The OpenGL context is made at the first picture, not
by dm_control, which would make one when it is imported. So training needs no OpenGL, and the same
process can still render later."""

import atexit
import ctypes.util
import importlib
import os
import sys
from typing import Any

import numpy as np

from ace.envs.api import EnvError

# Imported as Any: the names of mujoco come from a compiled module without type stubs.
mujoco: Any = importlib.import_module("mujoco")

LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}


class Camera:
    """Draws a model from one of its own cameras, or from a free camera if it has none."""

    def __init__(self, model: Any, index: int, width: int, height: int) -> None:
        self.size = (width, height)
        self._model = model
        self._gl = _gl_context(width, height)
        self._gl.make_current()
        model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
        model.vis.global_.offheight = max(height, model.vis.global_.offheight)
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._scene = mujoco.MjvScene(model, maxgeom=10_000)
        self._options = mujoco.MjvOption()
        self._view = mujoco.MjvCamera()
        if index < model.ncam:
            self._view.fixedcamid = index
            self._view.type = mujoco.mjtCamera.mjCAMERA_FIXED.value
        else:
            mujoco.mjv_defaultFreeCamera(model, self._view)
        # mujoco shuts OpenGL down at exit: free the context before that.
        atexit.register(self.close)

    def draw(self, data: Any) -> np.ndarray:
        """Draw a state as uint8 [height, width, 3]."""
        width, height = self.size
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        area = mujoco.MjrRect(0, 0, width, height)
        frame = np.empty((height, width, 3), np.uint8)
        self._gl.make_current()
        for terrain in range(self._model.nhfield):  # a reset may have changed it
            mujoco.mjr_uploadHField(self._model, self._context, terrain)
        mujoco.mjv_updateScene(
            self._model, data, self._options, None, self._view, everything, self._scene
        )
        mujoco.mjr_render(area, self._scene, self._context)
        mujoco.mjr_readPixels(frame, None, area, self._context)
        return np.ascontiguousarray(frame[::-1])  # OpenGL counts rows from below

    def close(self) -> None:
        """Free the OpenGL context."""
        atexit.unregister(self.close)
        self._gl.make_current()
        self._context.free()
        self._gl.free()


def _gl_context(width: int, height: int) -> Any:
    try:
        return importlib.import_module(f"mujoco.{_backend()}").GLContext(width, height)
    except (ImportError, AttributeError, RuntimeError) as error:
        raise EnvError(f"OpenGL does not work here: {error}; {_advice()}") from error


def _backend() -> str:
    """Name the module of mujoco that makes OpenGL contexts without a window."""
    if sys.platform == "darwin":
        return "cgl"
    wanted = os.environ.get("MUJOCO_GL", "").lower()
    if wanted in LIBRARIES:
        return wanted
    for name, library in LIBRARIES.items():
        if ctypes.util.find_library(library):
            return name
    raise EnvError(f"no OpenGL found for pictures; {_advice()}")


def _advice() -> str:
    return (
        "install PyOpenGL with pip, and either libegl1 and libgl1 (then set MUJOCO_GL=egl)"
        " or libosmesa6 (then set MUJOCO_GL=osmesa) with the system's package manager"
    )
