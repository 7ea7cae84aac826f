-- Since when is a rank late? For each tenth of the run: the rank that the others waited for most.
with timed as (
    select run, comm, seq, min(time) as time, count(*) as ranks, min(waited) as shortest, sum(waited) as total, arg_min(rank, waited) as last
    from collectives
    where comm <> 0 and waited is not null and name not in ('Send', 'Recv')
    group by run, comm, seq
),
parts as (
    select *, ntile(10) over (partition by run order by time) as part from timed where ranks > 1
),
late as (
    select run, part, last as rank, sum((total - shortest) / (ranks - 1) - shortest) as ns, min(time) as since
    from parts
    group by run, part, last
)
select run, part, arg_max(rank, ns) as rank, max(ns) / sum(ns) as of_all_waiting, min(since) as since
from late
group by run, part
order by run, part;
