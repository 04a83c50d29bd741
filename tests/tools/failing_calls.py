"""Which system calls strace_faults lets fail, with which errors, and which it does not."""
import collections

# What a run says that ends for an error: what it is called, or what it leaves undone.
ERRORS = {
    "EIO": ("Input/output error", "hwloc cannot read the machine's topology"),
    "ENOSPC": ("No space left on device",),
    "EMFILE": ("Too many open files",),
    "ENOLCK": ("No locks available",),
    "ENOMEM": ("Cannot allocate memory", "out of memory", "std::bad_alloc", "cannot start thread",
               "Thread creation failed", "oneDNN cannot prepare"),
    "EAGAIN": ("cannot start thread", "Thread creation failed", "io_setup"),
    "EINVAL": ("Invalid argument",),
    "ENOENT": ("No such file or directory",),
    "ENOSYS": ("Function not implemented",),
    "EINTR": ("Interrupted system call",),
    "short": ("",),
}

ALL = ("uring", "aio", "posix")
FIRST = ("uring",)
Call = collections.namedtuple("Call", "engines errors")
CALLS = {
    "io_uring_enter": Call(FIRST, ("EIO", "ENOSPC", "short")),
    "io_uring_setup": Call(FIRST, ("ENOMEM",)),
    "io_uring_register": Call(FIRST, ("ENOMEM",)),
    "io_setup": Call(("aio",), ("EAGAIN",)),
    "io_destroy": Call(("aio",), ("EINVAL",)),
    "io_submit": Call(("aio",), ("EIO", "ENOSPC", "short")),
    "io_getevents": Call(("aio",), ("EIO", "short")),
    "io_pgetevents": Call(("aio",), ("EIO", "short")),
    "pread64": Call(("posix",), ("EIO",)),
    "pwrite64": Call(ALL, ("EIO", "ENOSPC", "short")),
    "fdatasync": Call(("posix", "uring", "aio"), ("EIO", "ENOSPC")),
    "fsync": Call(ALL, ("EIO", "ENOSPC")),
    "fallocate": Call(FIRST, ("ENOSPC", "EIO")),
    "ftruncate": Call(FIRST, ("EIO",)),
    "mkdir": Call(FIRST, ("ENOSPC",)),
    "mkdirat": Call(FIRST, ("ENOSPC",)),
    "unlink": Call(FIRST, ("EIO",)),
    "unlinkat": Call(FIRST, ("EIO",)),
    "rmdir": Call(FIRST, ("EIO",)),
    "rename": Call(ALL, ("EIO", "ENOSPC")),
    "renameat": Call(ALL, ("EIO", "ENOSPC")),
    "renameat2": Call(ALL, ("EIO", "ENOSPC")),
    "open": Call(FIRST, ("EMFILE", "EIO")),
    "openat": Call(FIRST, ("EMFILE", "EIO")),
    "read": Call(FIRST, ("EIO", "short")),
    "write": Call(FIRST, ("ENOSPC", "short")),
    "close": Call(FIRST, ("EIO",)),
    "stat": Call(FIRST, ("EIO",)),
    "fstat": Call(FIRST, ("EIO",)),
    "lstat": Call(FIRST, ("EIO",)),
    "newfstatat": Call(FIRST, ("EIO",)),
    "statx": Call(FIRST, ("EIO",)),
    "access": Call(FIRST, ("EIO",)),
    "faccessat": Call(FIRST, ("EIO",)),
    "faccessat2": Call(FIRST, ("EIO",)),
    "statfs": Call(FIRST, ("EIO",)),
    "fstatfs": Call(FIRST, ("EIO",)),
    "getdents64": Call(FIRST, ("EIO",)),
    "readlink": Call(FIRST, ("EIO",)),
    "readlinkat": Call(FIRST, ("EIO",)),
    "getcwd": Call(FIRST, ("ENOENT",)),
    "flock": Call(FIRST, ("ENOLCK",)),
    "fcntl": Call(FIRST, ("EIO",)),
    "ioctl": Call(FIRST, ("EIO",)),
    "lseek": Call(FIRST, ("EIO",)),
    "mmap": Call(FIRST, ("ENOMEM",)),
    "mremap": Call(FIRST, ("ENOMEM",)),
    "mprotect": Call(FIRST, ("ENOMEM",)),
    "madvise": Call(FIRST, ("ENOMEM",)),
    "clone": Call(("posix",), ("EAGAIN",)),
    "clone3": Call(("posix",), ("EAGAIN",)),
    "eventfd2": Call(FIRST, ("EMFILE",)),
    "poll": Call(FIRST, ("ENOMEM", "short")),
    "ppoll": Call(FIRST, ("ENOMEM", "short")),
    "getrandom": Call(FIRST, ("ENOSYS",)),
    "sched_getaffinity": Call(FIRST, ("EINVAL",)),
    "sched_setaffinity": Call(FIRST, ("EINVAL",)),
    "prlimit64": Call(FIRST, ("EINVAL",)),
    "prctl": Call(FIRST, ("EINVAL",)),
    "uname": Call(FIRST, ("EIO",)),
    "clock_nanosleep": Call(FIRST, ("EINTR",)),
}

# Calls that do not fail here, and why.
WHY_UNTRIED = {
    "they do not return": ("execve", "exit", "exit_group", "rt_sigreturn"),
    "they cannot fail": ("getpid", "gettid", "getuid", "geteuid", "getgid", "getegid", "times",
                         "sched_yield", "restart_syscall"),
    "they fail for wrong arguments only": ("getrusage", "rt_sigaction", "rt_sigprocmask"),
    "it fails where a mapping is split and there are too many: the C library ends the program": (
        "munmap",),
    "the kernel returns the end that is left, and no error": ("brk",),
    "the C library prepares a thread by them and could not go on": (
        "arch_prctl", "set_tid_address", "set_robust_list", "rseq"),
    "a call that does not wake whom it should is a fault of no kernel": ("futex",),
}
UNTRIED = [name for names in WHY_UNTRIED.values() for name in names]

# Calls of a library that goes on as if they had succeeded, by what they are given.
SPARED = {
    "mmap": r"^NULL, 262144, PROT_READ\|PROT_WRITE, ",  # oneDNN writes code there
}
