// NCCL between processes that each have an emulated GPU: what cuda/processes/nccl_communicator.cu calls, over Unix
// sockets. Operations are work on a stream like kernels, and block when it runs; so a process that waits for its stream
// without having put there what others wait for blocks, as a GPU would. Whether an operation is part of a graph must be
// the same on both sides, and so must the capture that it stems from.
#include <nccl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime.h"

struct ncclComm {
  int rank, size;
  std::vector<int> sockets;              // to each rank; -1 to itself
  std::vector<uint64_t> sent, received;  // operations that were issued to and from each rank
  std::atomic<bool> has_lost_another = false;
  ~ncclComm() {
    for (const int socket : sockets)
      if (socket >= 0) close(socket);
  }
};

namespace {

using simt::fail;

std::string problem;  // the last one

ncclResult_t error(ncclResult_t status, const std::string& sentence) {
  problem = sentence;
  return status;
}

// --- connecting ---

// A socket of this rank, without a file.
sockaddr_un address_of(const ncclUniqueId& id, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "simt-nccl-%.60s-%d", id.internal, rank);
  return address;
}

int unix_socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

// Each rank connects to those before it and tells its number. False if another does not come within 30 seconds.
bool connect_all(ncclComm& comm, const ncclUniqueId& id) {
  const int listener = unix_socket();
  const sockaddr_un own = address_of(id, comm.rank);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&own), sizeof own) || listen(listener, comm.size)) {
    close(listener);
    return false;
  }
  bool all = true;
  for (int rank = 0; all && rank < comm.rank; ++rank) {
    const sockaddr_un other = address_of(id, rank);
    const int to = comm.sockets[static_cast<size_t>(rank)] = unix_socket();
    int tries = 0;
    while (tries < 3000 && connect(to, reinterpret_cast<const sockaddr*>(&other), sizeof other) != 0) {
      usleep(10000);
      ++tries;
    }
    all = tries < 3000 && write(to, &comm.rank, sizeof comm.rank) == sizeof comm.rank;
  }
  for (int count = comm.rank + 1; all && count < comm.size; ++count) {
    pollfd waiting{listener, POLLIN, 0};
    int rank = 0;
    all = poll(&waiting, 1, 30000) == 1;
    if (!all) break;
    const int from = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    all = read(from, &rank, sizeof rank) == sizeof rank && rank > comm.rank && rank < comm.size;
    if (all) comm.sockets[static_cast<size_t>(rank)] = from;
  }
  close(listener);
  return all;
}

// --- moving bytes ---

// How an operation was issued. A graph repeats it at each launch.
struct Origin {
  uint64_t number;  // of those that send to that rank
  uint64_t is_captured;
};

struct Part {  // of what is sent or received
  int peer;
  char* bytes;
  size_t count;
  Origin origin;
};

Origin sends(ncclComm& comm, int peer, cudaStream_t stream) {
  return {comm.sent[static_cast<size_t>(peer)]++, simt::is_capturing(stream)};
}
Origin receives(ncclComm& comm, int peer, cudaStream_t stream) {
  return {comm.received[static_cast<size_t>(peer)]++, simt::is_capturing(stream)};
}

void check_origins(const ncclComm& comm, int peer, Origin there, Origin here) {
  const auto words = [](const Origin& origin) { return origin.is_captured ? "in a graph" : "outside of a graph"; };
  if (there.is_captured != here.is_captured)
    fail("NCCL: rank %d sends %s what rank %d receives %s; all ranks must capture an operation, or none", peer,
         words(there), comm.rank, words(here));
  if (there.number != here.number)
    fail(
        "NCCL: rank %d sends operation %zu to rank %d, which receives operation %zu; all ranks must launch the graphs "
        "of one capture",
        peer, size_t{there.number}, comm.rank, size_t{here.number});
}

// A GPU waits for ever for one that is gone.
[[noreturn]] void wait_for_ever(ncclComm& comm) {
  comm.has_lost_another = true;
  for (;;) pause();
}

// All parts at once, each with its origin and its number of bytes before it. All processes list the parts between two
// of them in the same order.
void transfer(ncclComm& comm, const std::vector<Part>& sent, const std::vector<Part>& received) {
  struct Way {
    Part part;
    bool is_sent;
    struct {
      Origin origin;
      uint64_t count;
    } announced;
    size_t done = 0;  // bytes, of what is announced first
    size_t size() const { return sizeof announced + part.count; }
  };
  std::vector<Way> ways;
  for (const Part& part : sent) ways.push_back({part, true, {part.origin, part.count}});
  for (const Part& part : received) ways.push_back({part, false, {}});
  const auto advance = [&](Way& way) {
    const bool is_announced = way.done >= sizeof way.announced;
    char* const at = is_announced ? way.part.bytes + (way.done - sizeof way.announced)
                                  : reinterpret_cast<char*>(&way.announced) + way.done;
    const size_t left = (is_announced ? way.size() : sizeof way.announced) - way.done;
    const int socket = comm.sockets[static_cast<size_t>(way.part.peer)];
    const ssize_t moved =
        way.is_sent ? send(socket, at, left, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(socket, at, left, MSG_DONTWAIT);
    if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR)) wait_for_ever(comm);
    if (moved > 0) way.done += static_cast<size_t>(moved);
    if (way.is_sent || way.done != sizeof way.announced) return;
    check_origins(comm, way.part.peer, way.announced.origin, way.part.origin);
    if (way.announced.count != way.part.count)
      fail("NCCL: rank %d sends %zu bytes, of which rank %d expects %zu", way.part.peer, size_t{way.announced.count},
           comm.rank, way.part.count);
  };
  for (;;) {
    std::vector<pollfd> waiting;
    std::vector<Way*> first;  // to and from each peer
    for (Way& way : ways) {
      const auto same = [&](const Way* other) {
        return other->part.peer == way.part.peer && other->is_sent == way.is_sent;
      };
      if (way.done == way.size() || std::ranges::any_of(first, same)) continue;
      first.push_back(&way);
      waiting.push_back(
          {comm.sockets[static_cast<size_t>(way.part.peer)], static_cast<short>(way.is_sent ? POLLOUT : POLLIN), 0});
    }
    if (first.empty()) return;
    if (poll(waiting.data(), waiting.size(), -1) < 0) continue;
    for (size_t i = 0; i < first.size(); ++i)
      if (waiting[i].revents) advance(*first[i]);
  }
}

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
      return 4;
    default:
      fail("NCCL: type %d is not in the emulator", static_cast<int>(type));
  }
}

// --- groups ---

struct Operation {
  ncclComm* comm;
  cudaStream_t stream;
  std::vector<Part> sent, received;
};
int open_groups = 0;
std::vector<Operation> group;  // all of it moves together

ncclResult_t end_group() {
  if (group.empty()) return ncclSuccess;
  Operation all = std::move(group.front());
  for (size_t i = 1; i < group.size(); ++i) {
    if (group[i].comm != all.comm || group[i].stream != all.stream)
      return error(ncclInvalidUsage, "a group on several streams or communicators, which the emulator has not");
    all.sent.insert(all.sent.end(), group[i].sent.begin(), group[i].sent.end());
    all.received.insert(all.received.end(), group[i].received.begin(), group[i].received.end());
  }
  group.clear();
  simt::enqueue(all.stream, [all] { transfer(*all.comm, all.sent, all.received); });
  return ncclSuccess;
}

ncclResult_t add_to_group(Operation operation) {
  group.push_back(std::move(operation));
  return open_groups ? ncclSuccess : end_group();
}

void require_device_memory(const void* x, size_t bytes) {
  simt::require_device_memory({x, bytes ? static_cast<const char*>(x) + bytes - 1 : x}, "NCCL's arguments");
}

Part part_of(const void* x, size_t bytes, int peer, Origin origin) {
  require_device_memory(x, bytes);
  return {peer, static_cast<char*>(const_cast<void*>(x)), bytes, origin};
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t status) {
  return status == ncclSuccess       ? "no error"
         : status == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "an error of the emulator's NCCL";
}

const char* ncclGetLastError(ncclComm_t) { return problem.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  const char* const given = std::getenv("NCCL_COMM_ID");
  const std::string text = given ? given : std::to_string(std::random_device()()) + "-" + std::to_string(getpid());
  std::strncpy(id->internal, text.c_str(), sizeof id->internal - 1);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  auto connected = std::make_unique<ncclComm>();
  connected->rank = rank;
  connected->size = size;
  connected->sockets.assign(static_cast<size_t>(size), -1);
  connected->sent.assign(static_cast<size_t>(size), 0);
  connected->received.assign(static_cast<size_t>(size), 0);
  if (!connect_all(*connected, id)) return error(ncclSystemError, "the other processes have not come");
  if (std::getenv("NCCL_DEBUG")) std::fprintf(stderr, "NCCL: rank %d of %d is connected\n", rank, size);
  *comm = connected.release();
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* status) {
  *status = comm->has_lost_another ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++open_groups;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() { return --open_groups ? ncclSuccess : end_group(); }

ncclResult_t ncclSend(const void* x, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_to_group({comm, stream, {part_of(x, count * size_of(type), peer, sends(*comm, peer, stream))}, {}});
}
ncclResult_t ncclRecv(void* x, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return add_to_group({comm, stream, {}, {part_of(x, count * size_of(type), peer, receives(*comm, peer, stream))}});
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  if (from != to) return error(ncclInvalidUsage, "ncclBroadcast from another array, which the emulator has not");
  const size_t bytes = count * size_of(type);
  Operation operation{comm, stream, {}, {}};
  for (int rank = 0; rank < comm->size; ++rank)
    if (rank != root && comm->rank == root)
      operation.sent.push_back(part_of(to, bytes, rank, sends(*comm, rank, stream)));
  if (comm->rank != root) operation.received.push_back(part_of(to, bytes, root, receives(*comm, root, stream)));
  return add_to_group(std::move(operation));
}

ncclResult_t ncclAllGather(const void* own, void* all, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  const size_t bytes = count * size_of(type);
  char* const to = static_cast<char*>(all);
  if (own != to + bytes * static_cast<size_t>(comm->rank))
    return error(ncclInvalidUsage, "ncclAllGather from another array, which the emulator has not");
  Operation operation{comm, stream, {}, {}};
  for (int rank = 0; rank < comm->size; ++rank) {
    if (rank == comm->rank) continue;
    operation.sent.push_back(part_of(own, bytes, rank, sends(*comm, rank, stream)));
    operation.received.push_back(
        part_of(to + bytes * static_cast<size_t>(rank), bytes, rank, receives(*comm, rank, stream)));
  }
  return add_to_group(std::move(operation));
}

// From the last rank to the first: not the order of a tree.
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (from != to || type != ncclFloat32 || op != ncclSum || open_groups)
    return error(ncclInvalidUsage, "an ncclAllReduce that the emulator has not");
  const auto size = static_cast<size_t>(comm->size), own = static_cast<size_t>(comm->rank);
  std::vector<Part> sent, incoming;
  for (int rank = 0; rank < comm->size; ++rank) {
    if (rank == comm->rank) continue;
    sent.push_back(part_of(to, count * sizeof(float), rank, sends(*comm, rank, stream)));
    incoming.push_back({rank, nullptr, count * sizeof(float), receives(*comm, rank, stream)});
  }
  simt::enqueue(stream, [=] {
    float* const x = static_cast<float*>(to);
    std::vector<float> all(size * count);
    std::copy_n(x, count, all.begin() + static_cast<std::ptrdiff_t>(own * count));
    std::vector<Part> received = incoming;
    for (Part& part : received)
      part.bytes = reinterpret_cast<char*>(all.data() + static_cast<size_t>(part.peer) * count);
    transfer(*comm, sent, received);
    for (size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (size_t rank = size; rank-- > 0;) sum += all[rank * count + i];
      x[i] = sum;
    }
  });
  return ncclSuccess;
}

}  // extern "C"
