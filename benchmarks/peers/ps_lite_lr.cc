// Logistic regression by ps-lite: scheduler, one server and workers, by ZPushPull.
//
//   ps_lite_lr DATA FOLDER MODE ROWS FEATURES STEP WARM_UP ITERATIONS CHUNKS
//
// The role is in ps-lite's own environment (DMLC_ROLE and so on).  MODE is
//   dense  the model as CHUNKS keys with equally many values each;
//   kv     a key for each feature that the worker touches, sent every time, as ps-lite is made to be used;
//   lists  a worker's features as one key with all their values: its list is read by the server once.
// In each mode the server finds the places of a worker's features once, in a table of the touched features.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "ps/ps.h"

namespace {

using ps::Key;
using ps::SArray;

struct Options {
  std::string data, folder, mode;
  size_t num_rows, num_features;
  float step;
  int warm_up, iterations, chunks;
  bool dense() const { return mode == "dense"; }
};

template <typename T>
std::vector<T> ReadArray(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
    std::exit(2);
  }
  std::vector<T> values(static_cast<size_t>(file.tellg()) / sizeof(T));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()), values.size() * sizeof(T));
  return values;
}

std::vector<int64_t> ReadKeys(const Options& o, int rank) {
  return ReadArray<int64_t>(o.data + "/keys." + std::to_string(rank) + ".bin");
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Freed memory is kept: else every large message is mapped, faulted in and unmapped again.
void KeepMemory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 2147483647);
  mallopt(M_TOP_PAD, 64 << 20);
}

class Server {
 public:
  explicit Server(const Options& o) : options_(o), kv_(0) {
    const int workers = ps::NumWorkers();
    size_t width = o.num_features;
    if (!o.dense()) {
      std::vector<int64_t> all;
      std::vector<std::vector<int64_t>> keys;
      for (int rank = 0; rank < workers; ++rank) {
        keys.push_back(ReadKeys(o, rank));
        all.insert(all.end(), keys.back().begin(), keys.back().end());
      }
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
      width = all.size();
      for (const auto& mine : keys) {
        std::vector<int32_t> where(mine.size());
        size_t at = 0;
        for (size_t i = 0; i < mine.size(); ++i) {
          while (all[at] < mine[i]) ++at;
          where[i] = static_cast<int32_t>(at);
        }
        positions_.push_back(std::move(where));
        answers_.emplace_back(mine.size());
      }
    }
    weights_.assign(width, 0.0f);
    waiting_.resize(o.dense() ? o.chunks : 1);
    kv_.set_request_handle(
        [this](const ps::KVMeta& meta, const ps::KVPairs<float>& data, ps::KVServer<float>*) { Handle(meta, data); });
  }

 private:
  struct Request {
    ps::KVMeta meta;
    ps::KVPairs<float> data;
    int rank;
  };

  void Handle(const ps::KVMeta& meta, const ps::KVPairs<float>& data) {
    const int rank = ps::Postoffice::IDtoRank(meta.sender);
    const size_t chunk = options_.dense() ? data.keys[0] : 0;
    auto& waiting = waiting_[chunk];
    // Sparse answers are copies, so that a push may be applied while another worker's answer is still on the wire;
    // dense ones are the parameters themselves, which nobody reads any more when the last push is there.
    if (!options_.dense()) Apply(rank, data.vals);
    waiting.push_back({meta, data, rank});
    if (waiting.size() < static_cast<size_t>(ps::NumWorkers())) return;
    if (options_.dense()) ApplyDense(chunk);
    for (const auto& request : waiting) {
      ps::KVPairs<float> answer;
      answer.keys = request.data.keys;
      answer.vals = Values(request);
      kv_.Response(request.meta, answer);
    }
    waiting.clear();
  }

  void Apply(int rank, const SArray<float>& gradient) {
    const auto& where = positions_[rank];
    CHECK_EQ(gradient.size(), where.size());
    const float step = options_.step;
    for (size_t i = 0; i < where.size(); ++i) weights_[where[i]] -= step * gradient[i];
  }

  void ApplyDense(size_t chunk) {
    const size_t length = options_.num_features / options_.chunks;
    float* __restrict w = weights_.data() + chunk * length;
    const float step = options_.step;
    const auto& waiting = waiting_[chunk];
    for (const auto& request : waiting) CHECK_EQ(request.data.vals.size(), length);
    if (waiting.size() == 2) {
      const float* __restrict a = waiting[0].data.vals.data();
      const float* __restrict b = waiting[1].data.vals.data();
      for (size_t i = 0; i < length; ++i) w[i] -= step * (a[i] + b[i]);
      return;
    }
    for (const auto& request : waiting) {
      const float* __restrict a = request.data.vals.data();
      for (size_t i = 0; i < length; ++i) w[i] -= step * a[i];
    }
  }

  SArray<float> Values(const Request& request) {
    if (options_.dense()) {
      const size_t length = options_.num_features / options_.chunks;
      return SArray<float>(weights_.data() + request.data.keys[0] * length, length);
    }
    const auto& where = positions_[request.rank];
    auto& answer = answers_[request.rank];
    for (size_t i = 0; i < where.size(); ++i) answer[i] = weights_[where[i]];
    return SArray<float>(answer.data(), answer.size());
  }

  const Options options_;
  ps::KVServer<float> kv_;
  std::vector<float> weights_;
  std::vector<std::vector<int32_t>> positions_;
  std::vector<std::vector<float>> answers_;
  std::vector<std::vector<Request>> waiting_;
};

class Worker {
 public:
  Worker(const Options& o, int rank) : options_(o), rank_(rank) {
    const std::string end = "." + std::to_string(rank) + ".bin";
    indptr_ = ReadArray<int32_t>(o.data + "/indptr" + end);
    columns_ = ReadArray<int32_t>(o.data + (o.dense() ? "/columns" : "/local") + end);
    values_ = ReadArray<float>(o.data + "/values" + end);
    labels_ = ReadArray<float>(o.data + "/labels" + end);
    const auto touched = ReadKeys(o, rank);
    const size_t width = o.dense() ? o.num_features : touched.size();
    weights_.assign(width, 0.0f);
    gradient_.assign(width, 0.0f);
    residuals_.resize(labels_.size());
    const size_t messages = o.dense() ? o.chunks : 1;
    const size_t length = width / messages;
    for (size_t i = 0; i < messages; ++i) {
      std::vector<Key> keys = {o.dense() ? i : static_cast<Key>(rank)};
      if (o.mode == "kv") keys.assign(touched.begin(), touched.end());
      messages_.push_back({SArray<Key>(keys), SArray<float>(gradient_.data() + i * length, length),
                           SArray<float>(weights_.data() + i * length, length)});
    }
  }

  void Run() {
    ps::KVWorker<float> kv(0, 0);
    double begin_s = NowSeconds();
    std::vector<int> sent(messages_.size());
    for (int i = 0; i < options_.warm_up + options_.iterations; ++i) {
      if (i == options_.warm_up) begin_s = NowSeconds();
      Gradient();
      for (size_t m = 0; m < messages_.size(); ++m) {
        sent[m] = kv.ZPushPull(messages_[m].keys, messages_[m].gradient, &messages_[m].weights);
      }
      for (int timestamp : sent) kv.Wait(timestamp);
    }
    const double end_s = NowSeconds();
    std::ofstream file(options_.folder + "/result." + std::to_string(rank_) + ".json");
    file.precision(17);
    file << "{\"rank\": " << rank_ << ", \"begin_s\": " << begin_s << ", \"end_s\": " << end_s
         << ", \"loss_sum\": " << Loss() << "}\n";
  }

 private:
  struct Exchange {
    SArray<Key> keys;
    SArray<float> gradient;
    SArray<float> weights;
  };

  float Score(size_t row) const {
    float z = 0;
    for (int32_t j = indptr_[row]; j < indptr_[row + 1]; ++j) z += values_[j] * weights_[columns_[j]];
    return z;
  }

  void Gradient() {
    for (size_t row = 0; row < labels_.size(); ++row) residuals_[row] = Score(row);
    for (size_t row = 0; row < labels_.size(); ++row) {
      residuals_[row] = 1.0f / (1.0f + std::exp(-residuals_[row])) - labels_[row];
    }
    std::fill(gradient_.begin(), gradient_.end(), 0.0f);
    for (size_t row = 0; row < labels_.size(); ++row) {
      const float r = residuals_[row];
      for (int32_t j = indptr_[row]; j < indptr_[row + 1]; ++j) gradient_[columns_[j]] += values_[j] * r;
    }
  }

  double Loss() const {
    double sum = 0;
    for (size_t row = 0; row < labels_.size(); ++row) {
      const double margin = (2.0 * labels_[row] - 1.0) * Score(row);
      sum += std::log1p(std::exp(-std::abs(margin))) + std::max(-margin, 0.0);
    }
    return sum;
  }

  const Options options_;
  const int rank_;
  std::vector<int32_t> indptr_, columns_;
  std::vector<float> values_, labels_, weights_, gradient_, residuals_;
  std::vector<Exchange> messages_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 10) {
    std::fprintf(stderr, "usage: %s DATA FOLDER MODE ROWS FEATURES STEP WARM_UP ITERATIONS CHUNKS\n", argv[0]);
    return 2;
  }
  KeepMemory();
  const Options options = {argv[1],
                           argv[2],
                           argv[3],
                           std::strtoull(argv[4], nullptr, 10),
                           std::strtoull(argv[5], nullptr, 10),
                           std::strtof(argv[6], nullptr),
                           std::atoi(argv[7]),
                           std::atoi(argv[8]),
                           std::atoi(argv[9])};
  ps::Start(0);
  if (ps::IsServer()) {
    Server* server = new Server(options);
    ps::RegisterExitCallback([server]() { delete server; });
  }
  // Nobody pushes before the server can answer.
  ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup + ps::kScheduler);
  if (ps::IsWorker()) Worker(options, ps::MyRank()).Run();
  ps::Finalize(0, true);
  return 0;
}
