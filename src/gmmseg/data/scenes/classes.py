"""The classes of the built-in scenes; a class's place in the list is its train id."""

ROAD, PAVEMENT, BUILDING, FENCE, POLE, SIGN, VEGETATION, SKY, PERSON, CAR = range(10)
