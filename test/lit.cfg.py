# The lit suite of mla. A test is a .mlir file for mla-opt or a .test file with
# RUN lines for any tool. Features say which halves were built:
#   REQUIRES: compiler   mla-opt and mla-compile
#   REQUIRES: runtime    mla-run
import os
import sys

import lit.formats

config.name = "mla"
config.test_format = lit.formats.ShTest(execute_external=False)
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(config.mla_binary_dir, "test")
config.excludes = ["data", "Inputs", "check.py", "formats.py", "processes.py"]
config.suffixes = [".test"]

if config.mla_compiler:
    config.available_features.add("compiler")
    config.suffixes.append(".mlir")
if config.mla_runtime:
    config.available_features.add("runtime")

# Our tools first: a test must never find an installed mla-opt.
config.environment["PATH"] = os.pathsep.join(
    [config.mla_tools_dir, config.llvm_tools_dir, config.environment["PATH"]]
)

# LLVM is not instrumented: in a build with AddressSanitizer our half poisons
# memory of LLVM's allocators that the other half then uses.
config.environment.setdefault("ASAN_OPTIONS", "allow_user_poisoning=0")

config.substitutions += [
    ("%{python}", sys.executable),
    ("%{data}", os.path.join(config.test_source_root, "data")),
    (
        "%{kjv}",
        os.path.join(
            config.test_source_root, "../python-free-examples/models/kjv-tiny"
        ),
    ),
    ("%{processes}", sys.executable + " " + os.path.join(config.test_source_root, "Integration/processes.py")),
    ("%{formats}", sys.executable + " " + os.path.join(config.test_source_root, "Integration/formats.py")),
    ("%{check}", sys.executable + " " + os.path.join(config.test_source_root, "Integration/check.py")),
]
