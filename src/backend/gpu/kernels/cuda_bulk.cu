// The bulk copy engine of Hopper and later: bytes between global and shared memory, at the asking of one thread. What arrives is counted by a barrier in
// shared memory, whose phases have alternating parities.

#if __CUDA_ARCH__ >= 900
K_FUNC uint bulk_address(const void *p)
{
    return (uint)__cvta_generic_to_shared(p);
}

/* n barriers of so many arrivals each; one thread. */
K_FUNC void bulk_open(ulong *barriers, uint n, uint arrivals)
{
    for (uint i = 0u; i < n; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bulk_address(barriers + i)), "r"(arrivals) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* An arrival; the phase of the barrier ends when so many bytes more are there, too. */
K_FUNC void bulk_expect(const ulong *barrier, uint bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bulk_address(barrier)), "r"(bytes) : "memory");
}

K_FUNC void bulk_wait(const ulong *barrier, uint parity)
{
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra AGAIN;\n}" ::"r"(bulk_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* Addresses and bytes are multiples of 16. */
K_FUNC void bulk_fetch(void *to, const void *from, uint bytes, const ulong *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(bulk_address(to)), "l"(from),
                 "r"(bytes), "r"(bulk_address(barrier))
                 : "memory");
}

/* What every thread wrote, each behind bulk_written and all behind a barrier; `from` may be given up behind bulk_flush. */
K_FUNC void bulk_written()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

K_FUNC void bulk_store(void *to, const void *from, uint bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(bulk_address(from)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

K_FUNC void bulk_flush()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
#endif
