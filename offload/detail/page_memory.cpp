#include "offload/detail/page_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>

#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/stagger.hpp"

namespace spillway::offload::detail {
namespace {

/// Places in a huge page where buffers start. They are not at equal parts of it, which would be one
/// place to whatever looks at fewer bits of an address.
constexpr std::size_t kPlaces = 8;
constexpr std::size_t kPlaceBytes = kHugePageBytes / kPlaces + kStaggerBytes;
static_assert((kPlaces - 1) * kPlaceBytes + kStaggerBytes <= kHugePageBytes);

/// Large buffers lie in huge pages, so that the kernel can back all of them but the ends.
std::size_t alignment_for(std::size_t size) {
  return size >= 2 * kHugePageBytes ? kHugePageBytes : kPageBytes;
}

/// Advice only: a kernel without huge pages is slower and still right.
void advise_huge_pages(std::byte* address, std::size_t size) {
  const std::size_t whole_pages = size / kPageBytes * kPageBytes;
  if (size >= 2 * kHugePageBytes) ::madvise(address, whole_pages, MADV_HUGEPAGE);
}

/// Advice only: where it is refused, a fork is slow and still right.
void keep_from_children(std::byte* address, std::size_t size) {
  if (::madvise(address, size, MADV_DONTFORK) == 0) return;
  log_debug("a fork copies {} bytes of pinned memory: {}", size, std::strerror(errno));
}

std::size_t mapped_size(std::size_t size) {
  return round_up(std::max<std::size_t>(size, 1), kPageBytes);
}

void unmap(std::byte* address, std::size_t size) {
  if (size != 0 && ::munmap(address, size) != 0) log_error("munmap of {} bytes failed", size);
}

}  // namespace

std::byte* allocate_heap(std::size_t size) noexcept {
  const std::align_val_t alignment{alignment_for(size)};
  auto* address = static_cast<std::byte*>(::operator new(size, alignment, std::nothrow));
  if (address != nullptr) advise_huge_pages(address, size);
  return address;
}

void free_heap(std::byte* address, std::size_t size) noexcept {
  ::operator delete(address, std::align_val_t{alignment_for(size)});
}

std::byte* map_pages(const PageRequest& request) noexcept {
  const std::size_t alignment = alignment_for(request.size);
  const std::size_t place = request.number % kPlaces * kPlaceBytes % alignment;
  const std::size_t wanted = mapped_size(request.size);
  // The kernel aligns to its own page only: map more address space and give back what sticks out.
  const std::size_t slack = alignment - kPageBytes;
  void* mapping =
      ::mmap(nullptr, wanted + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(mapping);
  const std::size_t misalignment = reinterpret_cast<std::uintptr_t>(start) % alignment;
  const std::size_t head = (place + alignment - misalignment) % alignment;
  unmap(start, head);
  unmap(start + head + wanted, slack - head);
  advise_huge_pages(start + head, wanted);
  keep_from_children(start + head, wanted);
  return start + head;
}

void check_pages(const SharedPages& pages) {
  // Beyond the end of a file, memory faults.
  struct stat status {};
  if (::fstat(pages.file, &status) != 0) {
    throw_errno(errno, fmt::format("fstat of the file {} with shared pages", pages.file));
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  for (const FilePages& part : pages.parts) {
    check(part.first % kPageBytes == 0 && part.bytes % kPageBytes == 0 && part.bytes > 0 &&
              part.bytes <= size && part.first <= size - part.bytes,
          ErrorCode::invalid_argument,
          fmt::format("shared pages are {} bytes from {} of a file of {}; give whole pages of {} "
                      "that are in it",
                      part.bytes, part.first, size, kPageBytes));
  }
}

std::byte* map_shared_pages(const SharedPages& pages) noexcept {
  const std::size_t size = pages.bytes().value();
  void* mapping = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* const start = static_cast<std::byte*>(mapping);
  std::byte* next = start;
  for (const FilePages& part : pages.parts) {
    if (::mmap(next, part.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, pages.file,
               static_cast<off_t>(part.first)) == MAP_FAILED) {
      const int error = errno;
      unmap(start, size);
      errno = error;
      return nullptr;
    }
    next += part.bytes;
  }
  return start;
}

bool show_to_children(std::byte* address, std::size_t size) noexcept {
  return ::madvise(address, mapped_size(size), MADV_DOFORK) == 0;
}

void unmap_pages(std::byte* address, std::size_t size) noexcept {
  unmap(address, mapped_size(size));
}

}  // namespace spillway::offload::detail
