"""What telescopes see of a simulation: groups of particles."""

from ._friends import GroupCatalogue as GroupCatalogue
from ._friends import friends_of_friends as friends_of_friends
