//===- Probe.cpp - mla-run probe ------------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/probe/Probe.h"
#include "mla/Support/OutputFolder.h"
#include "runtime/cli/Commands.h"
#include <algorithm>
#include <ostream>
#include <unistd.h>

namespace mla::cli {
namespace {

/// Before minutes are spent: whether a machine file may be put at `file`. One that
/// is there is replaced, anything else is not.
Status checkOutput(const std::filesystem::path &file) {
  std::error_code ec;
  std::filesystem::path folder = file.parent_path();
  if (folder.empty())
    folder = ".";
  if (!std::filesystem::is_directory(folder, ec))
    return notFound(folder.string() + ": no such folder");
  if (access(folder.c_str(), W_OK) != 0)
    return ioError(folder.string() + ": cannot be written to");
  if (!std::filesystem::exists(file, ec))
    return {};
  if (Result<Machine> old = Machine::read(file); !old.ok())
    return invalid(file.string() +
                   ": exists and is no machine file; not replaced");
  return {};
}

void print(const probe::Report &report, std::ostream &out) {
  size_t what = 0, value = 0;
  for (const probe::Line &line : report.lines) {
    what = std::max(what, line.what.size());
    value = std::max(value, line.value.size());
  }
  auto padded = [](std::string text, size_t width) {
    text.resize(std::max(width, text.size()), ' ');
    return text;
  };
  for (const probe::Line &line : report.lines)
    out << padded(line.what, what) << "  " << padded(line.value, value) << "  "
        << line.how << "\n";
  for (const std::string &hint : report.hints)
    out << "hint: " << hint << "\n";
}

} // namespace

Status probe(const ProbeOptions &options, std::ostream &out,
             std::ostream &err) {
  MLA_RETURN_IF_ERROR(checkOutput(options.output));
  probe::Options what;
  what.name = options.name;
  what.devices = options.gpus;
  what.threads = options.threads;
  what.nccl = options.nccl;
  std::unique_ptr<hal::cuda::Driver> driver;
  if (!options.host) {
    Result<std::unique_ptr<hal::cuda::Driver>> loaded =
        hal::cuda::Driver::load(options.driver);
    if (loaded.ok())
      driver = *std::move(loaded);
    else if (options.gpus > 0)
      return loaded.status();
    else
      err << "mla-run: the host is measured: " << loaded.status().message()
          << "\n";
  }
  Result<probe::Report> report =
      driver ? probe::probeGpus(*driver, what, err) : probe::probeHost(what);
  MLA_RETURN_IF_ERROR(report.status());
  std::string text = report->machine.json();
  // What is written must be what can be read: a figure out of range is a
  // measurement that went wrong, and an odd --name is the user's.
  if (Result<Machine> back = Machine::parse(text, "what was measured");
      !back.ok())
    return back.status();
  MLA_RETURN_IF_ERROR(writeFileAtomically(options.output, text));
  print(*report, out);
  out << "wrote " << options.output.string() << "\n";
  return {};
}

} // namespace mla::cli
