-- Which rank do the others wait for? All ranks leave a collective together, so that the one that was
-- in it for the shortest time came last.
with timed as (
    select run, comm, seq, count(*) as ranks, min(waited) as shortest, sum(waited) as total, arg_min(rank, waited) as last
    from collectives
    where comm <> 0 and waited is not null and name not in ('Send', 'Recv')
    group by run, comm, seq
)
select run, last as rank, count(*) as collectives, sum((total - shortest) / (ranks - 1) - shortest) / 1e9 as seconds_others_waited
from timed
where ranks > 1
group by run, last
order by seconds_others_waited desc, rank;
