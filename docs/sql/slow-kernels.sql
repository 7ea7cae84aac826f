-- Which kernels are slower on a rank than on the others? Medians by histograms: within an eighth.
with counted as (
    select run, rank, name, low, sum(count) as n
    from histograms
    where what = 'kernel'
    group by run, rank, name, low
),
summed as (
    select *, sum(n) over (partition by run, rank, name order by low) as upto, sum(n) over (partition by run, rank, name) as total
    from counted
),
medians as (
    select run, rank, name, min(low) as typical, max(total) as times
    from summed
    where upto * 2 >= total
    group by run, rank, name
)
select run, rank, name, times, typical / 1e3 as us, (select min(o.typical) from medians o where o.run = m.run and o.name = m.name) / 1e3 as us_of_the_fastest
from medians m
where typical > 1.2 * (select min(o.typical) from medians o where o.run = m.run and o.name = m.name)
order by typical * times desc, rank;
