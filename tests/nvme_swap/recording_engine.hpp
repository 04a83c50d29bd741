// RecordingEngine: an adaptor that notes what was written and flushed, in order, so that a power
// cut can be simulated at any instant of the run. For tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nvme_swap/io_engine.hpp"

namespace spillway::nvme_swap {

struct RecordedEvent {
  enum class Kind { write_begun, write_ended, flush_begun, flush_ended, commit_reported };
  Kind kind;
  std::size_t operation = 0;  ///< links begin and end
  std::size_t file = 0;       ///< index in the engine's files
  std::uint64_t offset = 0;
  std::vector<std::byte> data{};
  std::uint64_t step = 0;  ///< of `commit_reported`
};

using Recording = std::vector<RecordedEvent>;

class RecordingEngine final : public IoEngine {
 public:
  RecordingEngine(std::unique_ptr<IoEngine> inner, const EngineOptions& options,
                  Recording& recording)
      : inner_(std::move(inner)),
        files_(options.files.begin(), options.files.end()),
        recording_(recording) {}

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] EngineAbilities abilities() const override { return inner_->abilities(); }

  [[nodiscard]] std::size_t submit(std::span<const IoRequest> requests) override {
    std::size_t count = 0;
    for (const IoRequest& request : requests) {
      if (inner_->submit({&request, 1}) == 0) break;
      ++count;
      if (request.operation == IoOperation::read) continue;
      const auto file = std::find(files_.begin(), files_.end(), request.file) - files_.begin();
      const bool write = request.operation == IoOperation::write;
      pending_.emplace_back(request.tag, recording_.size());
      RecordedEvent event{
          .kind = write ? RecordedEvent::Kind::write_begun : RecordedEvent::Kind::flush_begun,
          .operation = recording_.size(),
          .file = static_cast<std::size_t>(file),
          .offset = request.offset.value()};
      event.data.assign(request.data, request.data + request.length);
      recording_.push_back(std::move(event));
    }
    return count;
  }

  [[nodiscard]] std::size_t poll(std::span<IoResult> results) override {
    const std::size_t count = inner_->poll(results);
    for (const IoResult& result : results.first(count)) {
      const auto entry = std::find_if(pending_.begin(), pending_.end(), [&](const auto& pending) {
        return pending.first == result.tag;
      });
      if (entry == pending_.end()) continue;
      const RecordedEvent& begun = recording_[entry->second];
      const bool write = begun.kind == RecordedEvent::Kind::write_begun;
      recording_.push_back(
          {.kind = write ? RecordedEvent::Kind::write_ended : RecordedEvent::Kind::flush_ended,
           .operation = begun.operation,
           .file = begun.file});
      pending_.erase(entry);
    }
    return count;
  }

  void wait() override { inner_->wait(); }

 private:
  std::unique_ptr<IoEngine> inner_;
  std::vector<int> files_;
  Recording& recording_;
  std::vector<std::pair<std::uint64_t, std::size_t>> pending_;  // tag, begin in the recording
};

}  // namespace spillway::nvme_swap
