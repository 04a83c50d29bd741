#include "nvme_swap/drive_load.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <optional>
#include <random>
#include <utility>

#include "nvme_swap/detail/aligned_buffer.hpp"
#include "nvme_swap/detail/transfer_queue.hpp"
#include "runtime/base/elapsed.hpp"
#include "runtime/base/error.hpp"
#include "runtime/base/log.hpp"

namespace spillway::nvme_swap {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Bytes kRefillBlock = 1_MiB;

struct Stamp {
  std::uint64_t offset;
  std::uint64_t version;
};

int open_unnamed(const std::filesystem::path& directory) {
  int descriptor = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
    if (descriptor < 0) throw_errno(errno, "open a scratch file in " + directory.string());
    return descriptor;
  }
  std::string name = directory / "spillway-drive-XXXXXX";
  descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor < 0) throw_errno(errno, "open " + name);
  ::unlink(name.c_str());
  return descriptor;
}

void reserve(int descriptor, Bytes bytes, const std::filesystem::path& directory) {
  struct statvfs space {};
  if (::fstatvfs(descriptor, &space) != 0) throw_errno(errno, "statvfs " + directory.string());
  const Bytes available{std::uint64_t{space.f_bavail} * space.f_frsize};
  const int failed = bytes > available
                         ? ENOSPC
                         : ::posix_fallocate(descriptor, 0, static_cast<off_t>(bytes.value()));
  if (failed == ENOSPC || failed == EDQUOT || failed == EFBIG) {
    throw Error(ErrorCode::does_not_fit,
                fmt::format("{} has {} available where a scratch file of {} is wanted; free space, "
                            "choose another directory or a smaller file",
                            directory.string(), format_bytes(available), format_bytes(bytes)),
                failed);
  }
  if (failed != 0) throw_errno(failed, "preallocate a scratch file in " + directory.string());
}

double cpu_seconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Runs over `[begin, end)` again and again, a block at a time.
struct Cursor {
  std::uint64_t begin;
  std::uint64_t end;
  std::uint64_t next = begin;

  std::uint64_t take(std::uint64_t block) {
    if (next + block > end) next = begin;
    return std::exchange(next, next + block);
  }
};

/// One run of a load; the file and the engine's buffers for as long as it takes.
class Load {
 public:
  Load(DriveFile& file, const LoadOptions& options)
      : file_(file),
        options_(options),
        block_(options.block.value()),
        memory_(options.queue_depth * block_),
        slots_(options.queue_depth),
        reads_{.begin = 0, .end = file.bytes().value()},
        writes_{.begin = 0, .end = file.bytes().value()} {
    if (options.pattern == AccessPattern::mixed) {
      reads_.end = writes_.begin = writes_.next = file.bytes().value() / 2;
    }
    const std::span<std::byte> all = memory_.bytes();
    const std::array<std::span<std::byte>, 1> buffers{all};
    const EngineOptions engine_options{
        .files = descriptors_,
        .queue_depth = options.queue_depth,
        .buffers = options.registered_buffers ? std::span(buffers) : std::span(buffers).first(0),
        .uring = options.uring};
    engine_ = make_engine(options.engine, engine_options);
    if (options.adapt) engine_ = options.adapt(std::move(engine_), engine_options);
    transfers_.emplace(*engine_, options.queue_depth, block_, options.queue_depth);
    result_.engine = engine_->name();
    result_.abilities = engine_->abilities();
  }

  /// Starts blocks until `more(bytes moved)` says no, and waits for all of them.
  template <class More>
  LoadResult run(const More& more) {
    const Clock::time_point begin = Clock::now();
    const double cpu_begin = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (std::size_t slot = 0; slot < slots_.size() && more(started_); ++slot) start(slot);
    while (!transfers_->idle()) {
      transfers_->pump();
      std::size_t over = 0;
      while (const auto outcome = transfers_->take_outcome()) {
        finish(*outcome);
        if (more(started_)) start(outcome->owner);
        ++over;
      }
      if (over == 0) transfers_->wait();
    }
    result_.seconds = seconds_since(begin);
    result_.cpu_seconds = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin - result_.data_seconds;
    return result_;
  }

 private:
  struct Slot {
    IoOperation operation = IoOperation::read;
    std::uint64_t offset = 0;
    bool in_flight = false;
  };

  /// Offset of the next block that is not in flight. When the others come round, a slow operation
  /// may still be there, and of two writes of one block the older one may land last.
  std::uint64_t take_free(Cursor& cursor) {
    for (;;) {
      const std::uint64_t offset = cursor.take(block_);
      const bool taken = std::any_of(slots_.begin(), slots_.end(), [offset](const Slot& slot) {
        return slot.in_flight && slot.offset == offset;
      });
      if (!taken) return offset;
    }
  }

  std::span<std::byte> memory_of(std::size_t slot) {
    return memory_.bytes().subspan(slot * block_, block_);
  }

  void start(std::size_t index) {
    const bool write =
        options_.pattern == AccessPattern::write ||
        (options_.pattern == AccessPattern::mixed && std::exchange(write_next_, !write_next_));
    Slot& slot = slots_[index];
    slot = {.operation = write ? IoOperation::write : IoOperation::read,
            .offset = take_free(write ? writes_ : reads_),
            .in_flight = true};
    if (write) {
      const double begin = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
      file_.stamp(memory_of(index), slot.offset);
      result_.data_seconds += cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - begin;
    }
    transfers_->start({.operation = slot.operation,
                       .file = descriptors_[0],
                       .offset = FileOffset{slot.offset},
                       .data = memory_of(index).data(),
                       .length = block_,
                       .owner = static_cast<std::uint32_t>(index)});
    started_ += block_;
  }

  void finish(const detail::JobOutcome& outcome) {
    Slot& slot = slots_[outcome.owner];
    slot.in_flight = false;
    if (outcome.failure) {
      throw Error(ErrorCode::io_error,
                  fmt::format("{} of {} bytes at offset {} of the scratch file: {}",
                              name_of(slot.operation), outcome.failure->length,
                              outcome.failure->offset.value(),
                              outcome.failure->error != 0 ? std::strerror(outcome.failure->error)
                                                          : "no byte moved"),
                  outcome.failure->error);
    }
    if (slot.operation == IoOperation::write) {
      result_.written += Bytes{block_};
      return;
    }
    result_.read += Bytes{block_};
    if (!options_.verify) return;
    const double begin = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    file_.verify(memory_of(outcome.owner), slot.offset);
    result_.data_seconds += cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - begin;
  }

  DriveFile& file_;
  const LoadOptions options_;
  const std::size_t block_;
  const std::array<int, 1> descriptors_{file_.descriptor()};
  detail::AlignedBuffer memory_;
  std::vector<Slot> slots_;
  Cursor reads_;
  Cursor writes_;
  bool write_next_ = false;
  std::uint64_t started_ = 0;
  LoadResult result_;
  std::unique_ptr<IoEngine> engine_;  // goes before the memory that it uses
  std::optional<detail::TransferQueue> transfers_;
};

}  // namespace

DriveFile::DriveFile(const std::filesystem::path& directory, Bytes bytes, Bytes buffer)
    : descriptor_(open_unnamed(directory)),
      refill_depth_(std::clamp<std::size_t>(buffer.value() / kRefillBlock.value(), 1, 16)) {
  try {
    check(bytes.value() > 0 && bytes.value() % (2 << 20) == 0, ErrorCode::invalid_argument,
          fmt::format("a scratch file of {} bytes is not a multiple of 2 MiB", bytes.value()));
    pattern_.resize(kPageBytes - sizeof(Stamp));
    std::mt19937_64 random(0x5350494c4c574159);
    std::generate(pattern_.begin(), pattern_.end(),
                  [&random] { return static_cast<std::byte>(random()); });
    reserve(descriptor_, bytes, directory);
    versions_.resize(bytes.value() / kPageBytes);
    const int flags = ::fcntl(descriptor_, F_GETFL);
    direct_ = flags >= 0 && ::fcntl(descriptor_, F_SETFL, flags | O_DIRECT) == 0;
    if (!direct_) log_info("{} has no O_DIRECT: its page cache is measured", directory.string());
    refill();
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

DriveFile::~DriveFile() { ::close(descriptor_); }

std::string DriveFile::path_for_others() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), descriptor_);
}

void DriveFile::stamp(std::span<std::byte> block, std::uint64_t offset) {
  for (std::size_t at = 0; at < block.size(); at += kPageBytes) {
    const Stamp stamp{.offset = offset + at, .version = ++versions_[(offset + at) / kPageBytes]};
    std::byte* page = block.data() + at;
    std::memcpy(page, &stamp, sizeof stamp);
    // A buffer that was read into holds the pattern already, as does one stamped before.
    if (std::memcmp(page + sizeof stamp, pattern_.data(), sizeof stamp) != 0) {
      std::copy(pattern_.begin(), pattern_.end(), page + sizeof stamp);
    }
  }
}

void DriveFile::verify(std::span<const std::byte> block, std::uint64_t offset) const {
  for (std::size_t at = 0; at < block.size(); at += kPageBytes) {
    const std::byte* page = block.data() + at;
    const Stamp expected{.offset = offset + at, .version = versions_[(offset + at) / kPageBytes]};
    Stamp stamp{};
    std::memcpy(&stamp, page, sizeof stamp);
    const bool whole = stamp.offset == expected.offset && stamp.version == expected.version &&
                       std::memcmp(page + sizeof stamp, pattern_.data(), pattern_.size()) == 0;
    if (whole) continue;
    throw Error(ErrorCode::corrupt_data,
                fmt::format("the page at offset {} of the scratch file, written {} times, reads as "
                            "write {} of offset {}{}",
                            expected.offset, expected.version, stamp.version, stamp.offset,
                            stamp.offset == expected.offset && stamp.version == expected.version
                                ? " with other content"
                                : ""));
  }
}

void DriveFile::refill() {
  Load load(*this,
            {.pattern = AccessPattern::write, .queue_depth = refill_depth_, .block = kRefillBlock});
  static_cast<void>(load.run([this](std::uint64_t done) { return done < bytes().value(); }));
}

std::string_view name_of(AccessPattern pattern) {
  switch (pattern) {
    case AccessPattern::read: return "read";
    case AccessPattern::write: return "write";
    case AccessPattern::mixed: return "mixed";
  }
  return "unknown";
}

LoadResult run_load(DriveFile& file, const LoadOptions& options) {
  const std::uint64_t block = options.block.value();
  check(block > 0 && block % kPageBytes == 0 && file.bytes().value() / 2 % block == 0,
        ErrorCode::invalid_argument,
        fmt::format("blocks of {} bytes do not divide half of a file of {}", block,
                    format_bytes(file.bytes())));
  const std::uint64_t blocks =
      file.bytes().value() / block / (options.pattern == AccessPattern::mixed ? 2 : 1);
  check(options.queue_depth <= blocks, ErrorCode::invalid_argument,
        fmt::format("{} blocks in flight at once, in a file part of {}", options.queue_depth,
                    blocks));
  Load load(file, options);
  const Clock::time_point end = Clock::now() + options.duration;
  // Each slot once, however short the time: a rate of nothing would say nothing.
  const std::uint64_t least = options.queue_depth * block;
  return load.run(
      [end, least](std::uint64_t started) { return started < least || Clock::now() < end; });
}

void verify_all(DriveFile& file, EngineKind engine) {
  Load load(file, {.engine = engine, .queue_depth = 16, .block = kRefillBlock});
  static_cast<void>(load.run([&file](std::uint64_t done) { return done < file.bytes().value(); }));
}

}  // namespace spillway::nvme_swap
