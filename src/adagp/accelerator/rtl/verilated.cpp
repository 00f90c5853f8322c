// The testbench of a verilated accelerator: DRAM and descriptors for each core, as testbench.py has them.
// Verilator writes a double underscore as ___05F. Reads the files program.<core> and dram, writes dram again, and prints
// what each core did; or where each one stands, if nothing moves any more.
#include "Vaccelerator.h"
#include "verilated.h"
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

static std::vector<uint8_t> contents(const std::string &name) {
    FILE *file = fopen(name.c_str(), "rb");
    if (!file) { fprintf(stderr, "cannot read %s\n", name.c_str()); exit(2); }
    std::vector<uint8_t> bytes;
    uint8_t part[65536];
    for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0;) bytes.insert(bytes.end(), part, part + n);
    fclose(file);
    return bytes;
}

static uint64_t bits(const uint32_t *words, int low, int count) {
    uint64_t found = 0;
    for (int i = 0; i < count; i++) found |= (uint64_t)(words[(low + i) / 32] >> ((low + i) % 32) & 1) << i;
    return found;
}

struct Beat { int64_t start; uint32_t address; int words; int cycles; std::vector<int16_t> data; };

struct Core {
    std::vector<uint32_t> program;
    int64_t taken = 0, last = 0, read_words = 0, written_words = 0;
    int64_t answers_free = 0, writes_free = 0, offered = -1;
    std::deque<Beat> answers;
    bool answering = false, takes_writes = false;
    int64_t count() const { return program.size() / 4; }
    bool done() const { return taken == count(); }
};

static std::vector<int16_t> dram;
static int64_t cycle = 0, moved = 0;
static int bandwidth, latency;

static int beat_cycles(int words) { return words > bandwidth ? (words + bandwidth - 1) / bandwidth : 1; }

// Drive the inputs of a cycle, and look at the outputs before its edge. One of each for every core.
#define DRIVE(core, name, wide)                                                                    \
    {                                                                                              \
        top->name##___05Fdescriptors___05Fvalid = !core.done();                                            \
        if (!core.done())                                                                          \
            for (int i = 0; i < 4; i++) top->name##___05Fdescriptors___05Fpayload[i] = core.program[4 * core.taken + i]; \
        if (!core.answers.empty() && core.offered < 0) {                                           \
            int64_t from = core.answers[0].start > core.answers_free ? core.answers[0].start : core.answers_free; \
            core.offered = from + core.answers[0].cycles - 1;                                      \
        }                                                                                          \
        core.answering = !core.answers.empty() && cycle >= core.offered;                           \
        top->name##___05Fanswers___05Fvalid = core.answering;                                              \
        if (core.answering) {                                                                      \
            uint16_t words[wide] = {0};                                                            \
            for (int i = 0; i < core.answers[0].words; i++) words[i] = core.answers[0].data[i];    \
            set_beat(top->name##___05Fanswers___05Fpayload, words, wide);                                  \
        }                                                                                          \
        top->name##___05Frequests___05Fready = 1;                                                          \
        core.takes_writes = cycle >= core.writes_free;                                             \
        top->name##___05Fwrites___05Fready = core.takes_writes;                                            \
    }

#define LOOK(core, name, wide)                                                                     \
    {                                                                                              \
        if (core.answering && top->name##___05Fanswers___05Fready) {                                       \
            core.answers.pop_front();                                                              \
            core.answers_free = cycle + 1;                                                         \
            core.offered = -1;                                                                     \
            moved = cycle;                                                                         \
        }                                                                                          \
        if (top->name##___05Frequests___05Fvalid) {                                                        \
            uint64_t asked = top->name##___05Frequests___05Fpayload;                                       \
            uint32_t address = asked & 0xfffffff;                                                  \
            int words = asked >> 28 & 63;                                                          \
            if (words && (size_t)address + words > dram.size()) { fprintf(stderr, "read at %u\n", address); exit(3); } \
            Beat beat{cycle + latency, address, words, beat_cycles(words), {}};                    \
            if (words) beat.data.assign(dram.begin() + address, dram.begin() + address + words);   \
            core.read_words += words;                                                              \
            core.answers.push_back(beat);                                                          \
            moved = cycle;                                                                         \
        }                                                                                          \
        if (core.takes_writes && top->name##___05Fwrites___05Fvalid) {                                     \
            const uint32_t *payload = top->name##___05Fwrites___05Fpayload.data();                         \
            uint32_t address = bits(payload, 0, 28);                                               \
            int words = bits(payload, 28, 6);                                                      \
            if ((size_t)address + words > dram.size()) { fprintf(stderr, "write at %u\n", address); exit(3); } \
            for (int i = 0; i < words; i++) dram[address + i] = bits(payload, 34 + 16 * i, 16);    \
            core.written_words += words;                                                           \
            core.writes_free = cycle + beat_cycles(words);                                         \
            moved = cycle;                                                                         \
        }                                                                                          \
        if (!core.done() && top->name##___05Fdescriptors___05Fready) { core.taken++; core.last = moved = cycle; } \
    }

// A core that is not done: what it took, and whether it leaves an answer. DRAM takes requests and writes in the end.
#define STANDS(core, name, wide)                                                                   \
    if (!core.done())                                                                              \
        printf("stands %s %lld %lld%s\n", #name, (long long)moved, (long long)core.taken,          \
               core.answering && !top->name##___05Fanswers___05Fready ? " answers" : "");

template <typename T> static void set_beat(T &port, const uint16_t *words, int wide) {
    if constexpr (std::is_integral<T>::value) {
        port = 0;
        for (int i = 0; i < wide; i++) port |= (T)words[i] << (16 * i);
    } else {
        for (int i = 0; i < (wide + 1) / 2; i++)
            port[i] = words[2 * i] | (2 * i + 1 < wide ? (uint32_t)words[2 * i + 1] << 16 : 0);
    }
}

int main(int argc, char **argv) {
    bandwidth = atoi(argv[1]);
    latency = atoi(argv[2]);
    int64_t patience = atoll(argv[3]);
    auto raw = contents("dram");
    dram.assign((int16_t *)raw.data(), (int16_t *)(raw.data() + raw.size()));
    auto *top = new Vaccelerator;
    Core cores[CORES];
    const char *names[] = {NAMES};
    for (int i = 0; i < CORES; i++) {
        auto bytes = contents(std::string("program.") + names[i]);
        cores[i].program.assign((uint32_t *)bytes.data(), (uint32_t *)(bytes.data() + bytes.size()));
    }
    top->rst = 0;
    top->clk = 0;
    for (;; cycle++) {
        bool done = true;
        for (auto &core : cores) done = done && core.done();
        if (done) break;
        if (cycle % 100000 == 0) { printf("cycle %lld\n", (long long)cycle); fflush(stdout); }
        EACH_CORE(DRIVE)
        top->eval();
        EACH_CORE(LOOK)
        if (cycle - moved > patience) { EACH_CORE(STANDS) return 0; }
        top->clk = 1;
        top->eval();
        top->clk = 0;
    }
    for (int i = 0; i < CORES; i++)
        printf("core %s %lld %lld %lld\n", names[i], (long long)cores[i].last + 1, (long long)cores[i].read_words,
               (long long)cores[i].written_words);
    FILE *file = fopen("dram", "wb");
    fwrite(dram.data(), 2, dram.size(), file);
    fclose(file);
    return 0;
}
