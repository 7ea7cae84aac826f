-- In what does each rank spend the time before collectives, and by how much more than the ranks do on average?
with spent as (
    select run, rank, avg(compute) as compute, avg(copy) as copy, avg(driver) as driver, avg(host) as host
    from collectives
    where comm <> 0 and waited is not null and not repeated and name not in ('Send', 'Recv')
    group by run, rank
)
select run, rank, (compute - avg(compute) over (partition by run)) / 1e6 as ms_more_compute, (copy - avg(copy) over (partition by run)) / 1e6 as ms_more_copy,
    (driver - avg(driver) over (partition by run)) / 1e6 as ms_more_driver, (host - avg(host) over (partition by run)) / 1e6 as ms_more_host
from spent
order by greatest(ms_more_compute, ms_more_copy, ms_more_driver, ms_more_host) desc, rank;
