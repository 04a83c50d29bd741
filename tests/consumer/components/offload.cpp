// Bytes that go to the device of the host backend and come back.
#include <cstdio>

#include "offload/host/host_backend.hpp"
#include "offload/memory.hpp"

int main() {
  using namespace spillway;
  const auto backend =
      offload::make_host_backend({.device_capacity = 1_MiB, .pinned_capacity = 1_MiB});
  const offload::PinnedMemory source(*backend, 4_KiB), target(*backend, 4_KiB);
  const offload::DeviceMemory device(*backend, 4_KiB);
  source.host().back() = std::byte{42};
  const auto stream = backend->make_stream("component");
  stream->upload(device.device(), source.host());
  stream->download(target.host(), device.device());
  stream->synchronize();
  std::printf("%d\n", static_cast<int>(target.host().back()));
}
