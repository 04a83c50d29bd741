#include "offload/failing_backend.hpp"

#include <fmt/format.h>

#include <utility>

namespace spillway::offload {

/// Passes everything on to the wrapped stream, but for the operation that is to fail.
class FailingStream final : public Stream {
 public:
  FailingStream(FailingBackend& backend, std::unique_ptr<Stream> inner)
      : backend_(backend), inner_(std::move(inner)) {}

  void upload(DeviceSpan<std::byte> target, std::span<const std::byte> source) override {
    if (!fails(FaultKind::upload)) inner_->upload(target, source);
  }
  void download(std::span<std::byte> target, DeviceSpan<const std::byte> source) override {
    if (!fails(FaultKind::download)) inner_->download(target, source);
  }
  void submit(InlineTask task) override {
    if (!fails(FaultKind::task)) inner_->submit(task);
  }
  void record(Event& event) override { inner_->record(event); }
  void wait(Event& event) override { inner_->wait(event); }
  void synchronize() override { inner_->synchronize(); }
  [[nodiscard]] void* native() const override { return inner_->native(); }

 private:
  bool fails(FaultKind kind) {
    if (!backend_.is_due(kind)) return false;
    const std::uint64_t number = backend_.operations(kind);
    inner_->submit([number] {
      throw Error(ErrorCode::device_error,
                  fmt::format("injected fault: stream operation {} of its kind", number));
    });
    return true;
  }

  FailingBackend& backend_;
  std::unique_ptr<Stream> inner_;
};

void FailingBackend::fail(FaultKind kind, std::uint64_t nth) {
  Counter& counter = counters_[static_cast<std::size_t>(kind)];
  counter.fails_at = nth == 0 ? 0 : counter.seen + nth;
}

bool FailingBackend::is_due(FaultKind kind) {
  Counter& counter = counters_[static_cast<std::size_t>(kind)];
  return ++counter.seen == counter.fails_at;
}

std::byte* FailingBackend::allocate(MemoryKind kind, Bytes size) {
  const bool device = kind == MemoryKind::device;
  if (is_due(device ? FaultKind::device_allocation : FaultKind::pinned_allocation)) {
    throw Error(ErrorCode::out_of_memory, fmt::format("injected fault: {} allocation of {} bytes",
                                                      device ? "device" : "pinned", size.value()));
  }
  return inner_->allocate(kind, size);
}

std::byte* FailingBackend::map_shared(const SharedPages& pages) {
  if (is_due(FaultKind::pinned_allocation)) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("injected fault: mapping of {} shared bytes", pages.bytes().value()));
  }
  return inner_->map_shared(pages);
}

std::unique_ptr<Stream> FailingBackend::make_stream(std::string_view name, Urgency urgency) {
  return std::make_unique<FailingStream>(*this, inner_->make_stream(name, urgency));
}

}  // namespace spillway::offload
