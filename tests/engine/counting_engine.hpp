// CountingEngine: an I/O engine that counts the bytes which pass through it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "nvme_swap/io_engine.hpp"

namespace spillway::engine {

class CountingEngine final : public nvme_swap::IoEngine {
 public:
  /// Bytes, counted by whichever thread submits: a plan may still read ahead after a step.
  struct Moved {
    std::atomic<std::uint64_t> read = 0, written = 0;
  };
  CountingEngine(std::unique_ptr<nvme_swap::IoEngine> engine, Moved& moved)
      : engine_(std::move(engine)), moved_(moved) {}
  [[nodiscard]] std::string_view name() const override { return "counting"; }
  [[nodiscard]] std::size_t submit(std::span<const nvme_swap::IoRequest> requests) override {
    const std::size_t taken = engine_->submit(requests);
    for (const auto& request : requests.first(taken)) {
      if (request.operation == nvme_swap::IoOperation::read) moved_.read += request.length;
      if (request.operation == nvme_swap::IoOperation::write) moved_.written += request.length;
    }
    return taken;
  }
  [[nodiscard]] std::size_t poll(std::span<nvme_swap::IoResult> results) override {
    return engine_->poll(results);
  }
  void wait() override { engine_->wait(); }

 private:
  std::unique_ptr<nvme_swap::IoEngine> engine_;
  Moved& moved_;
};

}  // namespace spillway::engine
