#include "runtime/engine/report/step_trace.hpp"

#include <chrono>
#include <ostream>
#include <span>
#include <streambuf>
#include <string>

#include "runtime/base/file.hpp"

namespace spillway::engine {
namespace {

/// Enough to see the steady state.
constexpr std::uint64_t kTracedPlans = 20;

std::chrono::nanoseconds nanoseconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

/// Collects what a stream writes and hands it on in pieces. An error of the file is thrown through
/// the stream.
class FileBuffer final : public std::streambuf {
 public:
  explicit FileBuffer(AtomicFile& file) : file_(file) {}

 protected:
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    pending_.append(text, static_cast<std::size_t>(count));
    if (pending_.size() >= kPiece) sync();
    return count;
  }
  int_type overflow(int_type character) override {
    if (traits_type::eq_int_type(character, traits_type::eof())) return 0;
    const char text = traits_type::to_char_type(character);
    xsputn(&text, 1);
    return character;
  }
  int sync() override {
    file_.write(std::as_bytes(std::span(pending_)));
    pending_.clear();
    return 0;
  }

 private:
  static constexpr std::size_t kPiece = 64 << 10;

  AtomicFile& file_;
  std::string pending_;
};

}  // namespace

StepTrace::StepTrace(std::size_t ops, Passes passes) : trace_(ops * kTracedPlans) {
  const std::size_t lanes = passes == Passes::ours ? plan::kMachineLanes : plan::kLaneCount;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    lanes_[lane] = trace_.add_lane(plan::name_of(static_cast<plan::Lane>(lane)));
  }
}

void StepTrace::record(const Executor& executor) {
  if (plans_ == kTracedPlans) return;
  ++plans_;
  const auto begin = trace_.now() - nanoseconds(executor.seconds());
  const auto& ops = executor.plan().ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const plan::OpTiming& timing = executor.timings()[i];
    if (timing.end <= 0) continue;
    record(ops[i], begin + nanoseconds(timing.start), nanoseconds(timing.end - timing.start));
  }
}

void StepTrace::record(const plan::Op& op, std::chrono::nanoseconds duration) {
  if (plans_ < kTracedPlans) record(op, trace_.now() - duration, duration);
}

void StepTrace::record(const plan::Op& op, std::chrono::nanoseconds start,
                       std::chrono::nanoseconds duration) {
  trace_.record({.lane = lanes_[static_cast<std::size_t>(op.lane)],
                 .name = plan::name_of(op),
                 .category = plan::name_of(op.lane),
                 .start = start,
                 .duration = duration,
                 .arguments = {.block = BlockIndex{op.block},
                               .tile = TileIndex{op.tile},
                               .bytes = op.bytes,
                               .plan = plans_}});
}

void StepTrace::write(const std::filesystem::path& path) const {
  AtomicFile file(path);
  FileBuffer buffer(file);
  std::ostream stream(&buffer);
  stream.exceptions(std::ios::badbit);  // or the stream would keep the error to itself
  trace_.write_json(stream);
  stream.flush();
  file.replace();
}

}  // namespace spillway::engine
