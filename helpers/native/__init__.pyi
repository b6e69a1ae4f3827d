from ._cpp import CPP_FLAGS as CPP_FLAGS, Library as Library, compile_cpp as compile_cpp
from ._cubin import Resources as Resources
from ._driver import (
    LoadedKernel as LoadedKernel,
    Module as Module,
    gpu_architecture as gpu_architecture,
)
from ._machine_code import (
    AccessCount as AccessCount,
    Census as Census,
    HostCensus as HostCensus,
    KindCount as KindCount,
    MnemonicCount as MnemonicCount,
    census as census,
    disassemble as disassemble,
)
from ._nvrtc import (
    Cubin as Cubin,
    compile_cuda as compile_cuda,
    nvrtc_version as nvrtc_version,
    supported_architectures as supported_architectures,
)
from ._object_file import MachineCode as MachineCode
from ._tools import (
    CompilationError as CompilationError,
    MissingToolError as MissingToolError,
    NativeError as NativeError,
    find_compiler as find_compiler,
    find_nvdisasm as find_nvdisasm,
    find_objdump as find_objdump,
    read_source as read_source,
)
