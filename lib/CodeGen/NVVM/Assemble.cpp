//===- Assemble.cpp - PTX to machine code ---------------------------------===//
//
// Part of mla. Runs ptxas as a program, and reads what it reports.
//
//===----------------------------------------------------------------------===//
#include "Assemble.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include <optional>

using namespace mla;

std::string mla::findPtxas() {
  if (const char *chosen = std::getenv("MLA_PTXAS"))
    return chosen;
  if (auto found = llvm::sys::findProgramByName("ptxas"))
    return *found;
  std::vector<std::string> roots;
  for (const char *name : {"CUDA_HOME", "CUDA_PATH"})
    if (const char *root = std::getenv(name))
      roots.push_back(root);
  roots.push_back("/usr/local/cuda");
  for (const std::string &root : roots) {
    std::string path = root + "/bin/ptxas";
    if (llvm::sys::fs::can_execute(path))
      return path;
  }
  return "";
}

namespace {
/// A temporary file that goes with its owner.
class TemporaryFile {
public:
  static llvm::Expected<TemporaryFile> create(llvm::StringRef suffix) {
    TemporaryFile file;
    if (std::error_code ec =
            llvm::sys::fs::createTemporaryFile("mla", suffix, file.path))
      return makeError("cannot make a temporary file: " + ec.message());
    return file;
  }
  TemporaryFile(TemporaryFile &&other) : path(std::move(other.path)) {
    other.path.clear();
  }
  ~TemporaryFile() {
    if (!path.empty())
      llvm::sys::fs::remove(path);
  }
  llvm::StringRef name() const { return path; }
  llvm::Expected<std::string> read() const {
    auto buffer = llvm::MemoryBuffer::getFile(path);
    if (!buffer)
      return makeError(path + ": " + buffer.getError().message());
    return (*buffer)->getBuffer().str();
  }

private:
  TemporaryFile() = default;
  llvm::SmallString<128> path;
};

/// The number before `unit` in `line`.
std::optional<int64_t> numberBefore(llvm::StringRef line, llvm::StringRef unit) {
  size_t at = line.find(unit);
  if (at == llvm::StringRef::npos)
    return std::nullopt;
  llvm::StringRef before = line.take_front(at).rtrim();
  int64_t value = 0;
  if (before.take_back(before.size() - before.find_last_of(" ,") - 1)
          .getAsInteger(10, value))
    return std::nullopt;
  return value;
}

/// Reads what ptxas -v says.
void parseReport(llvm::StringRef report, std::vector<KernelResources> &all) {
  KernelResources *current = nullptr;
  llvm::SmallVector<llvm::StringRef> lines;
  report.split(lines, '\n');
  for (llvm::StringRef line : lines) {
    if (line.contains("Compiling entry function '")) {
      llvm::StringRef name = line.split('\'').second.split('\'').first;
      auto found = llvm::find_if(
          all, [&](const KernelResources &r) { return r.kernel == name; });
      current = found == all.end() ? nullptr : &*found;
      continue;
    }
    if (!current)
      continue;
    if (auto n = numberBefore(line, " bytes stack frame"))
      current->stackBytes = *n;
    for (llvm::StringRef unit : {" bytes spill stores", " bytes spill loads"})
      if (auto n = numberBefore(line, unit))
        current->spillBytes += *n;
    if (auto n = numberBefore(line, " registers"))
      current->registers = *n;
  }
}
} // namespace

llvm::Error mla::assemble(GpuCode &code, const Gpu &gpu) {
  std::string ptxas = findPtxas();
  if (ptxas.empty())
    return llvm::Error::success();
  auto source = TemporaryFile::create("ptx");
  auto object = TemporaryFile::create("cubin");
  auto report = TemporaryFile::create("txt");
  for (auto *file : {&source, &object, &report})
    if (!*file)
      return file->takeError();
  std::error_code ec;
  {
    llvm::raw_fd_ostream out(source->name(), ec);
    if (!ec)
      out << code.ptx;
  }
  if (ec)
    return makeError(source->name() + ": " + ec.message());
  std::string arch = ("-arch=" + gpu.name).str();
  llvm::StringRef arguments[] = {ptxas, arch,           "-v", source->name(),
                                 "-o",  object->name()};
  std::optional<llvm::StringRef> redirects[] = {std::nullopt, report->name(),
                                                report->name()};
  std::string message;
  int status = llvm::sys::ExecuteAndWait(ptxas, arguments, std::nullopt,
                                         redirects, 0, 0, &message);
  auto text = report->read();
  if (!text)
    return text.takeError();
  if (status != 0)
    return makeError(ptxas + " refuses the kernels for " + gpu.name + ": " +
                     (message.empty()
                          ? llvm::StringRef(*text).trim().take_front(2000)
                          : llvm::StringRef(message)));
  parseReport(*text, code.resources);
  auto binary = object->read();
  if (!binary)
    return binary.takeError();
  code.cubin = std::move(*binary);
  return llvm::Error::success();
}

std::string mla::resourceTable(llvm::ArrayRef<KernelResources> resources,
                               const Gpu &gpu) {
  std::string table;
  llvm::raw_string_ostream out(table);
  out << "| kernel | threads | registers | spilled bytes | shared bytes | "
         "blocks an SM |\n| --- | --- | --- | --- | --- | --- |\n";
  for (const KernelResources &r : resources)
    out << llvm::formatv("| {0} | {1} | {2} | {3} | {4} | {5} |\n", r.kernel,
                         r.threads, r.registers, r.spillBytes, r.sharedBytes,
                         r.blocksPerSM(gpu));
  return table;
}
