// The program behind the kernels' source and cuda_on_host.h: reads a job, runs its launches one after
// another, and writes what the memory then holds.
//
// A job is a sequence of numbers of 8 bytes and of bytes: the number of regions; of each the address, the
// size and the bytes; the number of launches; of each the kernel's place in KERNELS, the three numbers of
// blocks, the size of the arguments and these. Each region ends in front of a page that is not there.

static const u64 PAGE = 4096;

struct Region {
    u64 address, bytes;
};

static std::vector<char> job;
static size_t job_at;

static const char* take(size_t bytes) {
    if (job_at + bytes > job.size()) host_fail("the job ends in the middle");
    job_at += bytes;
    return job.data() + job_at - bytes;
}

static u64 take_number() {
    u64 number;
    memcpy(&number, take(8), 8);
    return number;
}

static void (*entered)(const char*);
static const char* entered_arguments;

static void enter() {
    entered(entered_arguments);
    fibers[running].state = OVER;
    swapcontext(&fibers[running].context, &scheduler);
}

template <typename Arguments, void (*KERNEL)(Arguments)>
static void call(const char* bytes) {
    Arguments arguments;
    memcpy(&arguments, bytes, sizeof arguments);
    KERNEL(arguments);
}

struct HostKernel {
    void (*run)(const char*);
    size_t bytes;
};

template <typename Arguments>
static Arguments arguments_of(void (*)(Arguments));

#define KERNEL(NAME) \
    {call<decltype(arguments_of(NAME)), NAME>, sizeof(decltype(arguments_of(NAME)))}

static const HostKernel HOST_KERNELS[] = {HOST_KERNEL_LIST};

static void run_block(const HostKernel& kernel, const char* arguments) {
    entered = kernel.run;
    entered_arguments = arguments;
    for (int at = 0; at < HOST_THREADS; ++at) {
        Fiber& fiber = fibers[at];
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = HOST_STACK;
        fiber.context.uc_link = nullptr;
        fiber.state = READY;
        makecontext(&fiber.context, enter, 0);
    }
    while (host_turn(enter)) {
    }
}

int main(int count, char** paths) {
    if (count != 3) host_fail("usage: JOB RESULT");
    FILE* file = fopen(paths[1], "rb");
    if (!file) host_fail("the job can't be read");
    char buffer[65536];
    for (size_t read; (read = fread(buffer, 1, sizeof buffer, file)) > 0;) job.insert(job.end(), buffer, buffer + read);
    fclose(file);
    for (Fiber& fiber : fibers) fiber.stack = (char*)malloc(HOST_STACK);
    std::vector<Region> regions(take_number());
    for (Region& region : regions) {
        region = {take_number(), take_number()};
        if (region.bytes == 0) continue;
        u64 start = region.address / PAGE * PAGE, end = (region.address + region.bytes + PAGE - 1) / PAGE * PAGE;
        void* mapped = mmap((void*)start, end - start, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (mapped != (void*)start) host_fail("a region can't be mapped");
        memcpy((void*)region.address, take(region.bytes), region.bytes);
    }
    for (u64 launches = take_number(); launches > 0; --launches) {
        u64 kernel = take_number();
        gridDim = {(unsigned)take_number(), (unsigned)take_number(), (unsigned)take_number()};
        blockDim = {HOST_THREADS, 1, 1};
        u64 bytes = take_number();
        if (kernel >= sizeof HOST_KERNELS / sizeof *HOST_KERNELS || bytes != HOST_KERNELS[kernel].bytes) {
            host_fail("there is no such kernel, or its arguments have another size");
        }
        const char* arguments = take(bytes);
        for (blockIdx.z = 0; blockIdx.z < gridDim.z; ++blockIdx.z) {
            for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
                for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
                    run_block(HOST_KERNELS[kernel], arguments);
                }
            }
        }
    }
    file = fopen(paths[2], "wb");
    for (const Region& region : regions) {
        if (!file || fwrite((void*)region.address, 1, region.bytes, file) != region.bytes) host_fail("no result");
    }
    if (fclose(file)) host_fail("no result");
}
