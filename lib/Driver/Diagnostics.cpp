//===- Diagnostics.cpp - MLIR's diagnostics for people --------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Diagnostics.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Location.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace mla;

static constexpr unsigned shownErrors = 10;

static void collectNames(Location loc, llvm::SetVector<StringRef> &names) {
  if (auto name = dyn_cast<NameLoc>(loc)) {
    names.insert(name.getName());
    return;
  }
  if (auto fused = dyn_cast<FusedLoc>(loc))
    for (Location part : fused.getLocations())
      collectNames(part, names);
}

std::string mla::locationText(Location loc) {
  // A fused op comes from several modules; two are enough to find it.
  llvm::SetVector<StringRef> names;
  collectNames(loc, names);
  if (names.empty()) {
    // A step function's text.
    auto place = loc->findInstanceOf<FileLineColLoc>();
    return place ? place.getFilename().str() + ":" +
                       std::to_string(place.getLine()) + ":" +
                       std::to_string(place.getColumn())
                 : "";
  }
  std::string text = names[0].str();
  if (names.size() > 1)
    text += names.size() > 2 ? ", ..., " + names.back().str()
                             : ", " + names.back().str();
  return text;
}

DiagnosticPrinter::DiagnosticPrinter(MLIRContext &context,
                                     llvm::raw_ostream &out)
    : out(out), handler(&context, [this](Diagnostic &diagnostic) {
        print(diagnostic);
        return success();
      }) {}

void DiagnosticPrinter::print(Diagnostic &diagnostic) {
  switch (diagnostic.getSeverity()) {
  case DiagnosticSeverity::Error:
    hidden = ++errors > shownErrors;
    if (!hidden)
      line("error", diagnostic);
    break;
  case DiagnosticSeverity::Warning:
    line("warning", diagnostic);
    break;
  case DiagnosticSeverity::Remark:
    if (remarks)
      line("note", diagnostic);
    break;
  case DiagnosticSeverity::Note:
    if (!hidden)
      line("note", diagnostic);
    break;
  }
}

void DiagnosticPrinter::line(StringRef severity, Diagnostic &diagnostic) {
  out << "mla-compile: " << severity << ": ";
  if (std::string where = locationText(diagnostic.getLocation());
      !where.empty())
    out << where << ": ";
  out << diagnostic.str() << "\n";
  if (diagnostic.getSeverity() != DiagnosticSeverity::Error)
    return;
  // Notes say why a candidate was rejected or where the other half stands. The
  // printed op that MLIR adds is of no use to whoever compiles a model.
  for (Diagnostic &note : diagnostic.getNotes())
    if (std::string text = note.str();
        StringRef(text).find("see current operation") == StringRef::npos)
      out << "  " << text << "\n";
}

void DiagnosticPrinter::finish() {
  if (errors > shownErrors)
    out << "mla-compile: error: " << errors - shownErrors
        << " more errors like these\n";
  errors = 0;
}
