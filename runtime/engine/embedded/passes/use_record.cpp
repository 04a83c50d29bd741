#include "runtime/engine/embedded/passes/use_record.hpp"

#include <utility>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::engine {

void UseRecord::trace(std::size_t ops) { trace_.emplace(ops, StepTrace::Passes::external); }

void UseRecord::note(EmbeddedPlan plan, const Executor& run, const OpActions& actions) {
  const Lock lock(mutex_);
  if (trace_) trace_->record(run);
  if (begins_step_ && plan != EmbeddedPlan::update) {
    begins_step_ = false;
    use_.busy_seconds = {};
  }
  const std::vector<plan::Op>& ops = run.plan().ops;
  for (std::size_t op = 0; op < ops.size(); ++op) {
    if (ops[op].lane == plan::Lane::external) continue;
    const plan::OpTiming& timing = run.timings()[op];
    use_.busy_seconds[static_cast<std::size_t>(ops[op].lane)] += timing.end - timing.start;
  }
  use_.busy_seconds[static_cast<std::size_t>(plan::Lane::d2h)] +=
      std::exchange(download_seconds_, 0);
  use_.read = actions.moved(plan::kReadState) + actions.moved(plan::kReadFrozen);
  use_.written = actions.moved(plan::kWriteState);
  use_.uploaded = actions.moved(plan::kUploadParams) + actions.moved(plan::kUploadFrozen);
}

void UseRecord::note_download(std::uint32_t block, Bytes bytes, std::chrono::nanoseconds duration) {
  plan::Op op;
  op.kind = plan::OpKind::copy;
  op.lane = plan::Lane::d2h;
  op.copied = plan::kDownloadGrads;
  op.block = block;
  op.bytes = bytes;
  const Lock lock(mutex_);
  if (trace_) trace_->record(op, duration);
  use_.downloaded += bytes;
  download_seconds_ += std::chrono::duration<double>(duration).count();
}

void UseRecord::end_step() {
  const Lock lock(mutex_);
  begins_step_ = true;
}

EmbeddedUse UseRecord::use() const {
  const Lock lock(mutex_);
  return use_;
}

void UseRecord::write_trace(const std::filesystem::path& path) const {
  check(trace_.has_value(), ErrorCode::invalid_argument,
        "the trainer records no trace: say so in its options (traces)");
  trace_->write(path);
}

}  // namespace spillway::engine
