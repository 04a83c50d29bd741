#include "nvme_swap/detail/polled_queues.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace spillway::nvme_swap::detail {

std::string obstacle_to_polling(std::span<const int> files) {
  for (const int file : files) {
    struct stat status {};
    if (::fstat(file, &status) != 0) return std::strerror(errno);
    const int flags = ::fcntl(file, F_GETFL);
    if (flags < 0 || (flags & O_DIRECT) == 0) return "a file is not open for direct I/O";
    const std::filesystem::path device =
        fmt::format("/sys/dev/block/{}:{}", major(status.st_dev), minor(status.st_dev));
    char value = '0';
    for (const char* queue : {"queue/io_poll", "../queue/io_poll"}) {  // a disk, a partition
      std::ifstream stream(device / queue);
      if (stream >> value) break;
    }
    if (value != '1') {
      return fmt::format("{} has no polled queues (for NVMe, boot with nvme.poll_queues=N)",
                         device.string());
    }
  }
  return {};
}

}  // namespace spillway::nvme_swap::detail
