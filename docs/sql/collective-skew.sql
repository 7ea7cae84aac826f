-- How far apart do ranks come to collectives, by operation and size?
with timed as (
    select run, comm, seq, name, bytes, max(waited) - min(waited) as skew, min(waited) as shortest
    from collectives
    where comm <> 0 and waited is not null and name not in ('Send', 'Recv')
    group by run, comm, seq, name, bytes
    having count(*) > 1
)
select name, bytes, count(*) as collectives, median(skew) / 1e6 as ms_skew, max(skew) / 1e6 as ms_most_skew, median(shortest) / 1e6 as ms_without_waiting
from timed
group by name, bytes
order by sum(skew) desc;
