"""Links kernels only once: in the function that Python calls.

numba links, optimises and compiles every function together with all functions that it calls, and so repeats
most of this work for each caller. With this module, a kernel that only other kernels call stays intermediate
code. A function that Python calls (an *entry*) is linked with all functions that it needs, optimised, and
compiled to machine code once. Shared kernels are not linked, but have machine code of their own
(`shared_code`).

The extension point is numba's `pipeline_class`. The libraries depend on internals of numba, whose version is
pinned in `constraints.txt`; `tests/unit/compile/test_jit.py` fails if a later version breaks them.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import llvmlite.binding as llvm
from numba.core import funcdesc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

from rlsched.compile.kernel_cache import DIGESTS, folder, types_digest
from rlsched.compile.shared_code import MARK, SHARED_CODE, is_shared, needed_by

_ENVIRONMENT = "_ZN08NumbaEnv"  # numba sets a global of this name when it loads a function
_LONGEST_NAME: Final = 256
_long_name = funcdesc.default_mangler


def _name(name: str, argtypes: Any, **more: Any) -> str:
    """Return a function's name for the linker; a digest replaces long argument types.

    The types of a state are ten thousand characters long, and numba repeats them at every call.
    """
    said = " ".join(map(str, argtypes))
    if len(said) <= _LONGEST_NAME:
        return str(_long_name(name, argtypes, **more))
    return f"{_long_name(name, (), **more)}v{hashlib.sha256(said.encode()).hexdigest()[:32]}"


funcdesc.default_mangler = _name


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """Base class of the libraries: numba's containers of compiled functions.

    Attributes:
        needs: Symbols of the shared kernels that the code calls.
    """

    needs: list[str]

    def _optimize_functions(self, ll_module: Any) -> None:
        # numba makes a pass manager for each function, and for each mere declaration
        ll_module.data_layout = self._codegen._data_layout
        passes, builder = self._function_passes()
        for function in ll_module.functions:
            if not function.is_declaration:
                passes.run(function, builder)

    def _function_passes(self) -> tuple[Any, Any]:
        return self._codegen._function_pass_manager()  # type: ignore[no-any-return]


class InsideLibrary(_Library):
    """A kernel and all functions that it calls, as intermediate code without machine code."""

    _final_module: Any

    def finalize(self) -> None:
        """Link this library. Only the `EntryLibrary` that uses this library is optimised and compiled."""
        whole = self._linked()
        for function in whole.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = "linkonce_odr"
        self.needs = needed_by(whole)
        self._close(whole)

    def _linked(self) -> Any:
        """Return an LLVM module with this kernel and all functions that it needs."""
        self._raise_if_finalized()
        whole = self._final_module
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            whole.link_in(library._get_module_for_linking(), preserve=True)
        whole.verify()
        return whole

    def _close(self, whole: Any) -> None:
        """Keep the LLVM module `whole` for the callers, which link it.

        numba gets an empty module to compile instead.
        """
        own = [each for each in whole.global_variables if each.name.startswith(_ENVIRONMENT)]
        self._shared_module = whole
        self._final_module = self._empty(*(f'@"{each.name}" = common global ptr null' for each in own))
        self._final_module.name = whole.name
        self._finalize_final_module()

    def _empty(self, *lines: str) -> Any:
        """Return an LLVM module with these lines only."""
        return llvm.parse_assembly("\n".join([str(self._codegen._create_empty_module(self.name)), *lines]))


class SharedLibrary(InsideLibrary):
    """A shared kernel: its callers declare it, and its machine code is in a file of its own."""

    def finalize(self) -> None:
        """Compile the kernel to machine code."""
        whole = self._linked()
        (symbol,) = [one.name for one in whole.functions if not one.is_declaration and is_shared(one.name)]
        for function in whole.functions:
            if not function.is_declaration and function.name != symbol:
                function.linkage = "internal"
        _optimize(self._codegen, whole)
        needs, self.needs = needed_by(whole), [symbol]
        code = self._codegen._tm.emit_object(whole)
        SHARED_CODE.add(self._codegen._engine, folder("shared"), symbol, needs, code)
        self._close(whole)
        self._shared_module = self._empty()


class EntryLibrary(_Library):
    """A function that Python calls, and all functions that it needs. The cache stores only machine code."""

    _final_module: Any

    def _get_module_for_linking(self) -> Any:
        """Return an LLVM module with empty functions that have the names of the entry's functions.

        numba needs the names to load machine code from the cache. The cache does not store the intermediate
        code, which is three times as large, because no other function links an entry.
        """
        self._ensure_finalized()
        names = (each.name for each in self._final_module.functions if not each.is_declaration)
        shell = str(self._codegen._create_empty_module(self.name))
        return llvm.parse_assembly(
            "\n".join([shell, *(f'define void @"{name}"() {{ ret void }}' for name in names)])
        )

    def _function_passes(self) -> tuple[Any, Any]:
        # these functions are optimised below, with the whole
        passes = llvm.create_new_function_pass_manager()
        passes.add_sroa_pass()
        return passes, self._codegen._pass_builder()

    def _optimize_final_module(self) -> None:
        # linked functions have no other callers: LLVM may drop their unused arguments
        for function in self._final_module.functions:
            if function.linkage == llvm.Linkage.linkonce_odr:
                function.linkage = "internal"
        _optimize(self._codegen, self._final_module)
        self.needs = needed_by(self._final_module)


def _optimize(codegen: Any, module: Any) -> None:
    """Optimise a linked module.

    numba optimises twice, the first time to cancel pairs of reference counts, which kernels lack. Level 1
    takes half the time of level 3, and gives equally fast code here, because the functions were already
    optimised one by one.
    """
    passes, builder = codegen._module_pass_manager(opt=1)
    passes.run(module, builder)


class _Into(Compiler):  # type: ignore[misc]
    """Base class of the compiler pipelines.

    Attributes:
        library: Class of the library that the pipeline makes.
        mark: Prefix of the digest of code and argument types in a function's symbol. "": the symbol has no
            digest; numba numbers the functions instead.
    """

    library: Any
    mark = ""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *rest: Any) -> None:
        super().__init__(typingctx, targetctx, library, *rest)
        if library is None:
            self.state.library = self.library(targetctx.codegen(), self.library.__name__)
            self.state.library.enable_object_caching()

    def _compile_bytecode(self) -> Any:
        if self.mark:
            # functions of several processes are linked with each other: their names must not be numbers
            function = self.state.func_id
            code = DIGESTS.digest_of(function.func).hex()[:32]
            function.unique_id = f"{self.mark}{code}{types_digest(self.state.args)}"
            function.unique_name = f"{function.func_qualname}${function.unique_id}"
        return super()._compile_bytecode()


class InsideCompiler(_Into):
    """The compiler pipeline of functions that only kernels call."""

    library, mark = InsideLibrary, "inside"


class SharedCompiler(_Into):
    """The compiler pipeline of shared kernels."""

    library, mark = SharedLibrary, MARK


class EntryCompiler(_Into):
    """The compiler pipeline of functions that Python calls."""

    library = EntryLibrary
