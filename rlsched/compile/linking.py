"""How kernels are linked: once, in the function that Python calls.

numba gives every compiled function a library of its own, links into it all that the function calls, optimises
the whole and makes machine code of it, and then does the same again for each caller. With kernels that call
kernels most of that work is thrown away. Here a kernel that only kernels call is kept as intermediate code;
what Python calls (an *entry*) is linked with all that it needs, optimised and made machine code of once.

The extension point is numba's `pipeline_class`; the two kinds of library rest on numba's own (its version is
pinned in `constraints.txt`, and `tests/unit/compile/test_jit.py` fails if a later one breaks this).
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import llvmlite.binding as llvm
from numba.core import funcdesc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

_ENVIRONMENT = "_ZN08NumbaEnv"  # numba sets a global of this name when it loads a function
_LONGEST_NAME: Final = 256
_long_name = funcdesc.default_mangler


def _name(name: str, argtypes: Any, **more: Any) -> str:
    """A function's name for the linker. numba writes its arguments' types into it: ten thousand characters
    for a state with all the fields of its records, at every call. Here a digest takes their place."""
    said = " ".join(map(str, argtypes))
    if len(said) <= _LONGEST_NAME:
        return str(_long_name(name, argtypes, **more))
    return f"{_long_name(name, (), **more)}v{hashlib.sha256(said.encode()).hexdigest()[:32]}"


funcdesc.default_mangler = _name


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """What both kinds have in common."""

    def _optimize_functions(self, ll_module: Any) -> None:
        # numba makes a pass manager for each function, and for each that is merely named
        ll_module.data_layout = self._codegen._data_layout
        passes, builder = self._function_passes()
        for function in ll_module.functions:
            if not function.is_declaration:
                passes.run(function, builder)

    def _function_passes(self) -> tuple[Any, Any]:
        return self._codegen._function_pass_manager()  # type: ignore[no-any-return]


class InsideLibrary(_Library):
    """A kernel and all that it calls as intermediate code: no machine code is made of it."""

    _final_module: Any

    def finalize(self) -> None:
        """Link, and leave the rest to the entry."""
        self._raise_if_finalized()
        whole = self._final_module
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            whole.link_in(library._get_module_for_linking(), preserve=True)
        whole.verify()
        own = [each for each in whole.global_variables if each.name.startswith(_ENVIRONMENT)]
        shell = str(self._codegen._create_empty_module(self.name))
        for function in whole.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = "linkonce_odr"
        self._shared_module = whole
        self._final_module = llvm.parse_assembly(
            "\n".join([shell, *(f'@"{each.name}" = common global ptr null' for each in own)])
        )
        self._final_module.name = whole.name
        self._finalize_final_module()


class EntryLibrary(_Library):
    """What Python calls, with all that it needs. The cache keeps its machine code alone."""

    _final_module: Any

    def _get_module_for_linking(self) -> Any:
        """Its functions as mere names, which numba asks for when it takes machine code from the cache.

        Nothing links an entry, so its intermediate code is not kept: it is three times as large as the
        machine code, and to read that of a broker's entries took 34 MiB.
        """
        self._ensure_finalized()
        names = (each.name for each in self._final_module.functions if not each.is_declaration)
        shell = str(self._codegen._create_empty_module(self.name))
        return llvm.parse_assembly(
            "\n".join([shell, *(f'define void @"{name}"() {{ ret void }}' for name in names)])
        )

    def _function_passes(self) -> tuple[Any, Any]:
        # the whole is optimised below, and these functions with it
        passes = llvm.create_new_function_pass_manager()
        passes.add_sroa_pass()
        return passes, self._codegen._pass_builder()

    def _optimize_final_module(self) -> None:
        # nobody else calls what was linked in: LLVM may drop arguments that it does not use
        for function in self._final_module.functions:
            if function.linkage == llvm.Linkage.linkonce_odr:
                function.linkage = "internal"
        # numba optimises twice, the first time so that reference counts meet and cancel: kernels have none
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)


class _Into(Compiler):  # type: ignore[misc]
    library: Any

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *rest: Any) -> None:
        super().__init__(typingctx, targetctx, library, *rest)
        if library is None:
            self.state.library = self.library(targetctx.codegen(), self.library.__name__)
            self.state.library.enable_object_caching()


class InsideCompiler(_Into):
    """The pipeline of functions that only kernels call."""

    library = InsideLibrary


class EntryCompiler(_Into):
    """The pipeline of functions that Python calls."""

    library = EntryLibrary
